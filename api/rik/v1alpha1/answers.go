package v1alpha1

import (
	"fmt"
	"slices"
	"strings"
)

// Ended returns whether an instance in this phase will never run again.
func (p InstancePhase) Ended() bool {
	switch p {
	case InstanceCompleted, InstanceFailed, InstanceTerminated:
		return true
	default:
		return false
	}
}

// Tolerates returns whether the toleration matches a taint.
func (t *Toleration) Tolerates(taint *Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect {
		return false
	}
	if t.Key == "" {
		return t.Operator == TolerationExists
	}
	if t.Key != taint.Key {
		return false
	}
	return t.Operator == TolerationExists || t.Value == taint.Value
}

// Tolerated returns whether one of the tolerations matches the taint.
func (t *Taint) Tolerated(tolerations []Toleration) bool {
	return slices.ContainsFunc(tolerations, func(o Toleration) bool { return o.Tolerates(t) })
}

// Text returns a taint as users write it: key=value:effect.
func (t *Taint) Text() string {
	if t.Value == "" {
		return t.Key + ":" + string(t.Effect)
	}
	return t.Key + "=" + t.Value + ":" + string(t.Effect)
}

// ParseTaint parses key=value:effect and key:effect. It does not check the parts.
func ParseTaint(text string) (Taint, error) {
	rest, effect, ok := strings.Cut(text, ":")
	if !ok || rest == "" {
		return Taint{}, fmt.Errorf("%q does not have the form key=value:NoSchedule", text)
	}
	key, value, _ := strings.Cut(rest, "=")
	return Taint{Key: key, Value: value, Effect: TaintEffect(effect)}, nil
}

// EffectiveRequests returns what an instance of the template reserves on a node. It is the sum
// over its containers, or the larger request of one init container, because an init container
// runs alone before the others. A container without a request for a resource reserves its limit.
// A microVM always reserves its memory.
func (t *InstanceTemplate) EffectiveRequests() ResourceList {
	sum := ResourceList{}
	add := func(r *Resources) {
		for name, q := range r.Effective() {
			total := sum[name]
			total.Add(q)
			sum[name] = total
		}
	}
	for _, c := range t.Processes() {
		add(&c.Resources)
	}
	if t.Virtual() {
		t.fillMachine(sum)
	}
	for i := range t.InitContainers {
		for name, q := range t.InitContainers[i].Resources.Effective() {
			if have := sum[name]; have.Cmp(q) < 0 {
				sum[name] = q.DeepCopy()
			}
		}
	}
	if t.Virtual() && t.Kind != KindFunction {
		sum.addMemory(GuestMemoryBytes)
	}
	return sum
}

// Effective returns the requests. For a resource without a request it returns the limit.
func (r *Resources) Effective() ResourceList {
	out := ResourceList{}
	for name, q := range r.Limits {
		out[name] = q.DeepCopy()
	}
	for name, q := range r.Requests {
		out[name] = q.DeepCopy()
	}
	return out
}

// AllPorts returns the ports of all containers, of the function and of the app.
func (t *InstanceTemplate) AllPorts() []Port {
	var ports []Port
	for i := range t.Containers {
		ports = append(ports, t.Containers[i].Ports...)
	}
	if t.Function != nil && t.Function.Exposure != nil {
		ports = append(ports, *t.Function.Exposure)
	}
	if t.App != nil {
		ports = append(ports, t.App.Ports...)
	}
	return ports
}

// The names of the only process of a Function and of an App. A Pod's containers have their own
// names.
const (
	FunctionContainer = "function"
	AppContainer      = "app"
)

// ConsoleLog is the container name that selects the log of a microVM's serial console, unless a
// container has this name.
const ConsoleLog = "console"

// Processes returns the containers of a Pod, or the only process of a Function or an App as a
// container. The image is empty for an App, and for a Function whose root is a URL.
func (t *InstanceTemplate) Processes() []Container {
	switch {
	case t.Function != nil:
		f := t.Function
		c := Container{
			Name: FunctionContainer, Image: f.Execution.Image, Command: f.Execution.Command, Args: f.Execution.Args,
			WorkingDir: f.Execution.WorkingDir, User: f.Execution.User, Env: f.Env, EnvFrom: f.EnvFrom, Resources: f.Resources,
			LivenessProbe: f.LivenessProbe, ReadinessProbe: f.ReadinessProbe, StartupProbe: f.StartupProbe,
		}
		if f.Exposure != nil {
			c.Ports = []Port{*f.Exposure}
		}
		return []Container{c}
	case t.App != nil:
		a := t.App
		return []Container{{
			Name: AppContainer, Command: a.Command, Args: a.Args, User: a.User, Env: a.Env, EnvFrom: a.EnvFrom,
			Resources: a.Resources, Ports: a.Ports,
			LivenessProbe: a.LivenessProbe, ReadinessProbe: a.ReadinessProbe, StartupProbe: a.StartupProbe,
		}}
	default:
		return t.Containers
	}
}

// Virtual returns whether an instance runs in a virtual machine.
func (t *InstanceTemplate) Virtual() bool {
	return t.Kind == KindFunction || t.Isolation == IsolationMicroVM
}
