package validation

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
)

var sha256Pattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// The limits of a microVM: the least memory with which it boots, and the most processors that each
// VMM supports.
var (
	smallestMachine = resource.MustParse("128Mi")
	largestMachine  = *resource.NewQuantity(rikv1alpha1.MaxMachineCPUs, resource.DecimalSI)
)

// isolation validates the kind of isolation. It rejects what a virtual machine cannot share with
// its node.
func isolation(at *field.Path, t *rik.InstanceTemplate) field.ErrorList {
	var errs field.ErrorList
	virtual := t.Kind == rik.KindFunction
	switch {
	case t.Isolation == "":
	case t.Kind == rik.KindPod:
		errs = among(at.Child("isolation"), t.Isolation, rik.IsolationContainer, rik.IsolationMicroVM)
		virtual = t.Isolation == rik.IsolationMicroVM
	default:
		errs = append(errs, field.Forbidden(at.Child("isolation"), "is allowed only for kind Pod: a Function is always a microVM, and an App never is"))
	}
	errs = append(errs, rateLimits(at.Child("rateLimits"), t.RateLimits, virtual)...)
	if !virtual {
		return errs
	}
	errs = append(errs, unsupported(at.Child("hostNetwork"), t.HostNetwork, "a microVM cannot use the node's network")...)
	if t.Kind != rik.KindPod {
		return errs
	}
	errs = append(errs, unsupported(at.Child("runtime"), t.Runtime != "", "a microVM does not use an OCI runtime")...)
	for i := range t.Volumes {
		errs = append(errs, unsupported(at.Child("volumes").Index(i).Child("hostPath"), t.Volumes[i].HostPath != nil, "a microVM cannot use the node's files")...)
	}
	cpu := resource.Quantity{}
	for i := range t.Containers {
		cpu.Add(t.Containers[i].Resources.Limits[rik.ResourceCPU])
		errs = append(errs, unprivileged(at.Child("containers").Index(i), &t.Containers[i])...)
	}
	for i := range t.InitContainers {
		here := at.Child("initContainers").Index(i)
		errs = append(errs, unprivileged(here, &t.InitContainers[i])...)
		errs = append(errs, processors(here.Child("resources", "limits").Key("cpu"), t.InitContainers[i].Resources.Limits[rik.ResourceCPU])...)
	}
	return append(errs, processors(at.Child("containers"), cpu)...)
}

func unprivileged(at *field.Path, c *rik.Container) field.ErrorList {
	set := c.Security != nil && c.Security.Privileged
	return unsupported(at.Child("security", "privileged"), set, "a microVM cannot have privileges on its node; addCapabilities adds capabilities in the guest")
}

// processors rejects more processors than a microVM can have.
func processors(at *field.Path, cpu resource.Quantity) field.ErrorList {
	if cpu.Cmp(largestMachine) <= 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(at, cpu.String(), fmt.Sprintf("a microVM has at most %d processors", rikv1alpha1.MaxMachineCPUs))}
}

func rateLimits(at *field.Path, r *rik.RateLimits, virtual bool) field.ErrorList {
	if r == nil {
		return nil
	}
	if !virtual {
		return field.ErrorList{field.Forbidden(at, "is allowed only for microVMs: kind Function, or isolation microvm")}
	}
	const most = int64(1) << 50
	errs := within(at.Child("diskBytesPerSecond"), r.DiskBytesPerSecond, 0, most)
	errs = append(errs, within(at.Child("diskOperationsPerSecond"), r.DiskOperationsPerSecond, 0, most)...)
	errs = append(errs, within(at.Child("networkReceiveBytesPerSecond"), r.NetworkReceiveBytesPerSecond, 0, most)...)
	return append(errs, within(at.Child("networkTransmitBytesPerSecond"), r.NetworkTransmitBytesPerSecond, 0, most)...)
}

func function(at *field.Path, f *rik.Function) field.ErrorList {
	errs := execution(at.Child("execution"), &f.Execution)
	if f.Exposure != nil {
		errs = append(errs, port(at.Child("exposure"), f.Exposure, false)...)
	}
	errs = append(errs, machineResources(at.Child("resources"), &f.Resources)...)
	errs = append(errs, environment(at.Child("env"), f.Env)...)
	errs = append(errs, environmentFrom(at.Child("envFrom"), f.EnvFrom)...)
	return append(errs, probes(at, &rik.Container{
		LivenessProbe: f.LivenessProbe, ReadinessProbe: f.ReadinessProbe, StartupProbe: f.StartupProbe,
	})...)
}

// execution validates the source of a root and its command. The node detects the format of a
// download from its content, so the URL can have any ending.
func execution(at *field.Path, e *rik.FunctionExecution) field.ErrorList {
	var errs field.ErrorList
	switch {
	case e.Rootfs != "" && e.Image != "":
		errs = append(errs, field.Forbidden(at.Child("image"), "rootfs and image must not be set together"))
	case e.Rootfs == "" && e.Image == "":
		errs = append(errs, field.Required(at, "rootfs or image is required"))
	case e.Image != "":
		errs = append(errs, image(at.Child("image"), e.Image)...)
		errs = append(errs, unsupported(at.Child("sha256"), e.SHA256 != "", "is allowed only with rootfs; an image has a digest")...)
	default:
		// The node allows or rejects http. Warnings has a warning for it.
		errs = append(errs, location(at.Child("rootfs"), e.Rootfs, "http", "https")...)
		if e.SHA256 != "" && !sha256Pattern.MatchString(e.SHA256) {
			errs = append(errs, field.Invalid(at.Child("sha256"), e.SHA256, "must be 64 lower-case hexadecimal digits"))
		}
		errs = append(errs, unsupported(at.Child("args"), len(e.Args) > 0 && len(e.Command) == 0, "is required with rootfs, which does not name a program")...)
	}
	errs = append(errs, command(at, e.Command, e.Args)...)
	if e.WorkingDir != "" {
		errs = append(errs, absolutePath(at.Child("workingDir"), e.WorkingDir)...)
	}
	return append(errs, user(at.Child("user"), e.User)...)
}

// machineResources validates the resources of a whole virtual machine.
func machineResources(at *field.Path, r *rik.Resources) field.ErrorList {
	errs := resources(at, r)
	if memory, ok := r.Limits[rik.ResourceMemory]; ok {
		errs = append(errs, atLeast(at.Child("limits").Key("memory"), memory, smallestMachine, ": a microVM has its own kernel")...)
	}
	return append(errs, processors(at.Child("limits").Key("cpu"), r.Limits[rik.ResourceCPU])...)
}

func app(at *field.Path, a *rik.App, hostNetwork bool) field.ErrorList {
	errs := repository(at, a)
	if len(a.Command) == 0 {
		errs = append(errs, field.Required(at.Child("command"), "must contain the program to run, such as ./server for a program of the repository"))
	}
	errs = append(errs, command(at, a.Command, a.Args)...)
	errs = append(errs, environment(at.Child("env"), a.Env)...)
	errs = append(errs, environmentFrom(at.Child("envFrom"), a.EnvFrom)...)
	errs = append(errs, user(at.Child("user"), a.User)...)
	errs = append(errs, resources(at.Child("resources"), &a.Resources)...)
	errs = append(errs, ports(at.Child("ports"), a.Ports, hostNetwork, seen{}, seen{})...)
	return append(errs, probes(at, &rik.Container{
		LivenessProbe: a.LivenessProbe, ReadinessProbe: a.ReadinessProbe, StartupProbe: a.StartupProbe,
	})...)
}
