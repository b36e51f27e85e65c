package v1alpha1

import "slices"

// Ended says whether an instance of this phase will never run again.
func (p InstancePhase) Ended() bool {
	switch p {
	case InstanceCompleted, InstanceFailed, InstanceTerminated:
		return true
	default:
		return false
	}
}

// Tolerates says whether a toleration lets an instance stay with a taint.
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

// Tolerated says whether one of the tolerations matches the taint.
func (t *Taint) Tolerated(tolerations []Toleration) bool {
	return slices.ContainsFunc(tolerations, func(o Toleration) bool { return o.Tolerates(t) })
}

// Text is a taint as people write it: key=value:effect.
func (t *Taint) Text() string {
	if t.Value == "" {
		return t.Key + ":" + string(t.Effect)
	}
	return t.Key + "=" + t.Value + ":" + string(t.Effect)
}

// EffectiveRequests is what an instance of the template reserves on a node:
// the sum over its containers, or a larger need of one init container, since
// those run alone and before the others. A container that requests nothing of
// a resource reserves its limit, and a microVM its memory in any case.
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

// Effective is requests, filled from limits where no request is made.
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

// AllPorts are the ports of every container, of the function and of the app.
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

// The names of the only process of a Function and of an App, where a Pod's
// containers have names of their own.
const (
	FunctionContainer = "function"
	AppContainer      = "app"
)

// ConsoleLog is the name under which the log of a microVM's serial console is read,
// unless a container has it.
const ConsoleLog = "console"

// Processes are the containers of a Pod, and in the same form the only process
// of a Function or an App. Its image is empty for an App, and for a Function
// whose root is a URL.
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

// Virtual tells whether an instance is a virtual machine.
func (t *InstanceTemplate) Virtual() bool {
	return t.Kind == KindFunction || t.Isolation == IsolationMicroVM
}
