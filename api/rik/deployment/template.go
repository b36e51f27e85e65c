package deployment

import (
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// template returns the template of the instances of a Deployment.
func template(d *appsv1.Deployment) rikv1alpha1.InstanceTemplate {
	pod := &d.Spec.Template.Spec
	out := rikv1alpha1.InstanceTemplate{
		Kind:           rikv1alpha1.KindPod,
		Labels:         copied(d.Spec.Template.Labels),
		Annotations:    copied(d.Spec.Template.Annotations),
		RestartPolicy:  rikv1alpha1.RestartAlways,
		HostNetwork:    pod.HostNetwork,
		Hostname:       pod.Hostname,
		OnDisconnect:   rikv1alpha1.DisconnectKeep,
		NodeSelector:   copied(pod.NodeSelector),
		Affinity:       affinity(pod.Affinity),
		Tolerations:    tolerations(pod.Tolerations),
		TopologySpread: spread(pod.TopologySpreadConstraints),
	}
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.TerminationGracePeriodSeconds != nil {
		grace = *pod.TerminationGracePeriodSeconds
	}
	out.TerminationGracePeriodSeconds = &grace
	if pod.RuntimeClassName != nil {
		out.Runtime = *pod.RuntimeClassName
	}
	if pod.Priority != nil {
		out.Priority = *pod.Priority
	}
	for _, secret := range pod.ImagePullSecrets {
		out.ImagePullSecrets = append(out.ImagePullSecrets, secret.Name)
	}
	for i := range pod.Volumes {
		out.Volumes = append(out.Volumes, volume(&pod.Volumes[i]))
	}
	for i := range pod.InitContainers {
		out.InitContainers = append(out.InitContainers, container(&pod.InitContainers[i], pod))
	}
	served := map[string]bool{}
	for i := range pod.Containers {
		c := container(&pod.Containers[i], pod)
		c.Ports = ports(pod.Containers[i].Ports, pod.HostNetwork, served)
		out.Containers = append(out.Containers, c)
	}
	return out
}

// container translates the fields that init containers and other containers have in common. Ports
// are not among them, because ports of init containers have no effect.
func container(c *corev1.Container, pod *corev1.PodSpec) rikv1alpha1.Container {
	out := rikv1alpha1.Container{
		Name:            c.Name,
		Image:           c.Image,
		ImagePullPolicy: rikv1alpha1.PullPolicy(c.ImagePullPolicy),
		Command:         words(c.Command),
		Args:            words(c.Args),
		WorkingDir:      c.WorkingDir,
		User:            user(c, pod),
		Resources:       resources(&c.Resources),
		LivenessProbe:   probe(c.LivenessProbe, c.Ports),
		ReadinessProbe:  probe(c.ReadinessProbe, c.Ports),
		StartupProbe:    probe(c.StartupProbe, c.Ports),
		Security:        security(c.SecurityContext, nonRoot(c, pod)),
		TTY:             c.TTY,
	}
	for i := range c.Env {
		out.Env = append(out.Env, variable(&c.Env[i]))
	}
	for i := range c.EnvFrom {
		out.EnvFrom = append(out.EnvFrom, variables(&c.EnvFrom[i]))
	}
	for i := range c.VolumeMounts {
		out.VolumeMounts = append(out.VolumeMounts, mount(&c.VolumeMounts[i]))
	}
	return out
}

// ports returns the ports of one container. Containers of an instance share its network, so a port
// that two of them name is served once. A hostPort is a port of each node, and leads to all
// replicas.
func ports(list []corev1.ContainerPort, onHost bool, served map[string]bool) []rikv1alpha1.Port {
	var out []rikv1alpha1.Port
	add := func(p rikv1alpha1.Port) {
		if key := strconv.Itoa(int(p.Port)) + "/" + string(p.Protocol); !served[key] {
			served[key] = true
			out = append(out, p)
		}
	}
	for _, p := range list {
		port := rikv1alpha1.Port{
			Name: p.Name, Port: p.ContainerPort, TargetPort: p.ContainerPort,
			Protocol: protocol(p.Protocol), Type: rikv1alpha1.PortClusterIP,
		}
		// With the node's network, the container itself listens on the node's port.
		if p.HostPort != 0 && !onHost {
			outside := port
			outside.Port, outside.Type = p.HostPort, rikv1alpha1.PortNodePort
			if p.HostPort != p.ContainerPort {
				outside.Name = "" // a name belongs to one port
			}
			add(outside)
		}
		add(port)
	}
	return out
}

func protocol(p corev1.Protocol) rikv1alpha1.Protocol {
	if p == "" {
		return rikv1alpha1.ProtocolTCP
	}
	return rikv1alpha1.Protocol(p)
}

// fieldPaths maps fields of a pod to the fields of an instance with the same meaning.
var fieldPaths = map[string]string{
	"metadata.name":      "metadata.name",
	"metadata.namespace": "metadata.namespace",
	"metadata.uid":       "metadata.uid",
	"spec.nodeName":      "spec.nodeName",
	"status.podIP":       "status.address",
	"status.hostIP":      "status.hostAddress",
}

func variable(e *corev1.EnvVar) rikv1alpha1.EnvVar {
	out := rikv1alpha1.EnvVar{Name: e.Name, Value: e.Value}
	if e.ValueFrom == nil {
		return out
	}
	out.ValueFrom = &rikv1alpha1.EnvVarSource{}
	if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
		out.ValueFrom.ConfigMapKeyRef = &rikv1alpha1.KeyRef{Name: r.Name, Key: r.Key, Optional: isTrue(r.Optional)}
	}
	if r := e.ValueFrom.SecretKeyRef; r != nil {
		out.ValueFrom.SecretKeyRef = &rikv1alpha1.KeyRef{Name: r.Name, Key: r.Key, Optional: isTrue(r.Optional)}
	}
	if r := e.ValueFrom.FieldRef; r != nil {
		out.ValueFrom.FieldRef = fieldPaths[r.FieldPath]
	}
	return out
}

func variables(e *corev1.EnvFromSource) rikv1alpha1.EnvFromSource {
	out := rikv1alpha1.EnvFromSource{Prefix: e.Prefix}
	if r := e.ConfigMapRef; r != nil {
		out.ConfigMap, out.Optional = r.Name, isTrue(r.Optional)
	}
	if r := e.SecretRef; r != nil {
		out.Secret, out.Optional = r.Name, isTrue(r.Optional)
	}
	return out
}

func isTrue(value *bool) bool { return value != nil && *value }

// user returns the user and group of a container. The pod has the defaults of both.
func user(c *corev1.Container, pod *corev1.PodSpec) string {
	var uid, gid *int64
	if s := pod.SecurityContext; s != nil {
		uid, gid = s.RunAsUser, s.RunAsGroup
	}
	if s := c.SecurityContext; s != nil {
		if s.RunAsUser != nil {
			uid = s.RunAsUser
		}
		if s.RunAsGroup != nil {
			gid = s.RunAsGroup
		}
	}
	var parts []string
	for _, id := range []*int64{uid, gid} {
		if id != nil {
			parts = append(parts, strconv.FormatInt(*id, 10))
		}
	}
	return strings.Join(parts, ":")
}

// nonRoot returns runAsNonRoot of the container, or of the pod if the container does not set it.
// The node decides by the final user of the container.
func nonRoot(c *corev1.Container, pod *corev1.PodSpec) bool {
	if s := c.SecurityContext; s != nil && s.RunAsNonRoot != nil {
		return *s.RunAsNonRoot
	}
	return pod.SecurityContext != nil && isTrue(pod.SecurityContext.RunAsNonRoot)
}

func security(s *corev1.SecurityContext, nonRoot bool) *rikv1alpha1.Security {
	if s == nil {
		s = &corev1.SecurityContext{}
	}
	out := rikv1alpha1.Security{RunAsNonRoot: nonRoot, ReadOnlyRootFilesystem: isTrue(s.ReadOnlyRootFilesystem), Privileged: isTrue(s.Privileged)}
	if c := s.Capabilities; c != nil {
		for _, name := range c.Add {
			out.AddCapabilities = append(out.AddCapabilities, string(name))
		}
		for _, name := range c.Drop {
			out.DropCapabilities = append(out.DropCapabilities, string(name))
		}
	}
	if !out.RunAsNonRoot && !out.ReadOnlyRootFilesystem && !out.Privileged && out.AddCapabilities == nil && out.DropCapabilities == nil {
		return nil
	}
	return &out
}

// resourceNames maps resources of Kubernetes to those of rik.
var resourceNames = map[corev1.ResourceName]rikv1alpha1.ResourceName{
	corev1.ResourceCPU:              rikv1alpha1.ResourceCPU,
	corev1.ResourceMemory:           rikv1alpha1.ResourceMemory,
	corev1.ResourceEphemeralStorage: rikv1alpha1.ResourceDisk,
}

func resources(r *corev1.ResourceRequirements) rikv1alpha1.Resources {
	return rikv1alpha1.Resources{Requests: amounts(r.Requests), Limits: amounts(r.Limits)}
}

func amounts(list corev1.ResourceList) rikv1alpha1.ResourceList {
	var out rikv1alpha1.ResourceList
	for name, amount := range list {
		if out == nil {
			out = rikv1alpha1.ResourceList{}
		}
		out[resourceNames[name]] = amount.DeepCopy()
	}
	return out
}
