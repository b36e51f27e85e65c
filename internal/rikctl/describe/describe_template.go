package describe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/kubectl/pkg/describe"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/printer"
)

// writeTemplate writes the template of an instance. If there is an instance, it adds the status
// of each container.
func writeTemplate(w describe.PrefixWriter, t *rikv1alpha1.InstanceTemplate, i *rikv1alpha1.Instance) {
	var status rikv1alpha1.InstanceStatus
	if i != nil {
		status = i.Status
	}
	writeContainers(w, "Init Containers", t.InitContainers, status.InitContainers)
	writeContainers(w, "Containers", t.Containers, status.Containers)
	if t.Function != nil {
		writeFunction(w, t.Function)
	}
	if t.App != nil {
		writeApp(w, t.App)
	}
	writeVolumes(w, t.Volumes)
	printer.Optional(w, 0, "Restart Policy", string(t.RestartPolicy))
	printer.Optional(w, 0, "Isolation", string(t.Isolation))
	writeRateLimits(w, t.RateLimits)
	if t.HostNetwork {
		printer.Field(w, 0, "Host Network", "yes")
	}
	if len(t.NodeSelector) > 0 {
		writeMap(w, 0, "Node Selector", t.NodeSelector)
	}
	if len(t.Tolerations) > 0 {
		words := []string{}
		for _, o := range t.Tolerations {
			words = append(words, tolerationText(o))
		}
		printer.Field(w, 0, "Tolerations", strings.Join(words, ", "))
	}
	if t.Priority != 0 {
		printer.Field(w, 0, "Priority", t.Priority)
	}
}

func tolerationText(o rikv1alpha1.Toleration) string {
	text := o.Key
	if o.Operator != rikv1alpha1.TolerationExists {
		text += "=" + o.Value
	}
	if text == "" {
		text = "*"
	}
	if o.Effect != "" {
		text += ":" + string(o.Effect)
	}
	return text
}

func writeContainers(w describe.PrefixWriter, title string, containers []rikv1alpha1.Container, seen []rikv1alpha1.ContainerStatus) {
	if len(containers) == 0 && len(seen) == 0 {
		return
	}
	w.Write(0, "%s:\n", title)
	known := map[string]bool{}
	for i := range containers {
		c := &containers[i]
		known[c.Name] = true
		w.Write(1, "%s:\n", c.Name)
		writeContainer(w, c)
		for n := range seen {
			if seen[n].Name == c.Name {
				writeContainerStatus(w, &seen[n])
			}
		}
	}
	// The revision may be gone while its instance still exists.
	for n := range seen {
		if !known[seen[n].Name] {
			w.Write(1, "%s:\n", seen[n].Name)
			writeContainerStatus(w, &seen[n])
		}
	}
}

func writeContainer(w describe.PrefixWriter, c *rikv1alpha1.Container) {
	printer.Field(w, 2, "Image", c.Image)
	printer.Optional(w, 2, "Command", strings.Join(c.Command, " "))
	printer.Optional(w, 2, "Args", strings.Join(c.Args, " "))
	printer.Optional(w, 2, "User", c.User)
	printer.Optional(w, 2, "Working Directory", c.WorkingDir)
	printer.Optional(w, 2, "Ports", portsText(c.Ports))
	printer.Optional(w, 2, "Requests", amountsText(c.Resources.Requests))
	printer.Optional(w, 2, "Limits", amountsText(c.Resources.Limits))
	printer.Optional(w, 2, "Liveness", probeText(c.LivenessProbe))
	printer.Optional(w, 2, "Readiness", probeText(c.ReadinessProbe))
	printer.Optional(w, 2, "Startup", probeText(c.StartupProbe))
	writeEnv(w, c.Env, c.EnvFrom)
	for _, m := range c.VolumeMounts {
		mode := "read and write"
		if m.ReadOnly {
			mode = "read only"
		}
		printer.Field(w, 2, "Mount", fmt.Sprintf("%s from %s (%s)", m.MountPath, strings.TrimSuffix(m.Name+"/"+m.SubPath, "/"), mode))
	}
}

func writeEnv(w describe.PrefixWriter, env []rikv1alpha1.EnvVar, from []rikv1alpha1.EnvFromSource) {
	for _, f := range from {
		switch {
		case f.ConfigMap != "":
			printer.Field(w, 2, "Environment", f.Prefix+"* from configmap "+f.ConfigMap)
		case f.Secret != "":
			printer.Field(w, 2, "Environment", f.Prefix+"* from secret "+f.Secret)
		}
	}
	for i := range env {
		printer.Field(w, 2, "Environment", env[i].Name+"="+envText(&env[i]))
	}
}

// envText returns the value of a variable, or its origin. It never shows a secret.
func envText(e *rikv1alpha1.EnvVar) string {
	switch s := e.ValueFrom; {
	case s == nil:
		return e.Value
	case s.ConfigMapKeyRef != nil:
		return fmt.Sprintf("<key %s of configmap %s>", s.ConfigMapKeyRef.Key, s.ConfigMapKeyRef.Name)
	case s.SecretKeyRef != nil:
		return fmt.Sprintf("<key %s of secret %s>", s.SecretKeyRef.Key, s.SecretKeyRef.Name)
	default:
		return "<" + s.FieldRef + ">"
	}
}

func portsText(ports []rikv1alpha1.Port) string {
	var words []string
	for _, p := range ports {
		target := p.TargetPort
		if target == 0 {
			target = p.Port
		}
		text := fmt.Sprintf("%d->%d", p.Port, target)
		if p.Protocol != "" {
			text += "/" + string(p.Protocol)
		}
		if p.Type != "" {
			text += " " + string(p.Type)
		}
		words = append(words, text)
	}
	return strings.Join(words, ", ")
}

func writeContainerStatus(w describe.PrefixWriter, s *rikv1alpha1.ContainerStatus) {
	state := string(s.State)
	if s.Reason != "" {
		state += " (" + s.Reason + ")"
	}
	printer.Field(w, 2, "State", state)
	printer.Optional(w, 3, "Message", s.Message)
	// Otherwise the message belongs to the last run.
	if s.State != rikv1alpha1.ContainerWaiting || s.LastState == nil {
		printer.Optional(w, 3, "Started", moment(s.StartedAt))
		printer.Optional(w, 3, "Finished", moment(s.FinishedAt))
		if s.ExitCode != nil {
			printer.Field(w, 3, "Exit Code", *s.ExitCode)
		}
	}
	if last := s.LastState; last != nil {
		printer.Field(w, 2, "Last State", strings.TrimSuffix(fmt.Sprintf("Exited (%s)", last.Reason), " ()"))
		printer.Optional(w, 3, "Message", last.Message)
		printer.Optional(w, 3, "Started", moment(last.StartedAt))
		printer.Optional(w, 3, "Finished", moment(last.FinishedAt))
		printer.Field(w, 3, "Exit Code", last.ExitCode)
	}
	printer.Field(w, 2, "Ready", yes(s.Ready))
	printer.Field(w, 2, "Restarts", s.RestartCount)
	printer.Optional(w, 2, "Digest", s.ImageDigest)
}

func writeFunction(w describe.PrefixWriter, f *rikv1alpha1.Function) {
	w.Write(0, "Function:\n")
	printer.Optional(w, 1, "Root", f.Execution.Rootfs)
	printer.Optional(w, 1, "SHA256", f.Execution.SHA256)
	printer.Optional(w, 1, "Image", f.Execution.Image)
	printer.Optional(w, 1, "Command", strings.Join(slices.Concat(f.Execution.Command, f.Execution.Args), " "))
	if f.Exposure != nil {
		printer.Field(w, 1, "Exposure", portsText([]rikv1alpha1.Port{*f.Exposure}))
	}
	printer.Optional(w, 1, "User", f.Execution.User)
	printer.Optional(w, 1, "Working Directory", f.Execution.WorkingDir)
	printer.Optional(w, 1, "Requests", amountsText(f.Resources.Requests))
	printer.Optional(w, 1, "Limits", amountsText(f.Resources.Limits))
	printer.Optional(w, 1, "Liveness", probeText(f.LivenessProbe))
	printer.Optional(w, 1, "Readiness", probeText(f.ReadinessProbe))
	printer.Optional(w, 1, "Startup", probeText(f.StartupProbe))
	writeEnv(w, f.Env, f.EnvFrom)
}

// writeRateLimits writes the limits on the devices of a microVM.
func writeRateLimits(w describe.PrefixWriter, r *rikv1alpha1.RateLimits) {
	if r == nil {
		return
	}
	w.Write(0, "Rate Limits:\n")
	for _, l := range []struct {
		label string
		most  int64
		unit  string
	}{
		{"Disk", r.DiskBytesPerSecond, "bytes/s"},
		{"Disk Operations", r.DiskOperationsPerSecond, "operations/s"},
		{"Network Receive", r.NetworkReceiveBytesPerSecond, "bytes/s"},
		{"Network Transmit", r.NetworkTransmitBytesPerSecond, "bytes/s"},
	} {
		if l.most > 0 {
			printer.Field(w, 1, l.label, fmt.Sprintf("%d %s", l.most, l.unit))
		}
	}
}

func writeApp(w describe.PrefixWriter, a *rikv1alpha1.App) {
	w.Write(0, "App:\n")
	printer.Field(w, 1, "Repo", a.Repo)
	printer.Optional(w, 1, "Version", a.Version)
	printer.Optional(w, 1, "Command", strings.Join(slices.Concat(a.Command, a.Args), " "))
	printer.Optional(w, 1, "User", a.User)
	printer.Optional(w, 1, "Ports", portsText(a.Ports))
	printer.Optional(w, 1, "Requests", amountsText(a.Resources.Requests))
	printer.Optional(w, 1, "Limits", amountsText(a.Resources.Limits))
	printer.Optional(w, 1, "Liveness", probeText(a.LivenessProbe))
	printer.Optional(w, 1, "Readiness", probeText(a.ReadinessProbe))
	printer.Optional(w, 1, "Startup", probeText(a.StartupProbe))
	writeEnv(w, a.Env, a.EnvFrom)
}

func writeVolumes(w describe.PrefixWriter, volumes []rikv1alpha1.Volume) {
	if len(volumes) == 0 {
		return
	}
	w.Write(0, "Volumes:\n")
	for i := range volumes {
		printer.Field(w, 1, volumes[i].Name, volumeText(&volumes[i]))
	}
}

func volumeText(v *rikv1alpha1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return "configmap " + v.ConfigMap.Name
	case v.Secret != nil:
		return "secret " + v.Secret.Name
	case v.HostPath != nil:
		return "host path " + v.HostPath.Path
	case v.EmptyDir != nil && v.EmptyDir.InMemory:
		return "empty directory in memory"
	}
	return "empty directory"
}

func probeText(p *rikv1alpha1.Probe) string {
	if p == nil {
		return ""
	}
	how := ""
	switch {
	case p.Exec != nil:
		how = "exec " + strings.Join(p.Exec.Command, " ")
	case p.TCP != nil:
		how = fmt.Sprintf("tcp port %d", p.TCP.Port)
	case p.HTTP != nil:
		how = fmt.Sprintf("%s port %d path %s", strings.ToLower(cmp.Or(p.HTTP.Scheme, "http")), p.HTTP.Port, p.HTTP.Path)
	}
	return fmt.Sprintf("%s, first after %ds, every %ds, within %ds, healthy after %d, failed after %d", how,
		p.InitialDelaySeconds, p.PeriodSeconds, p.TimeoutSeconds, p.SuccessThreshold, p.FailureThreshold)
}
