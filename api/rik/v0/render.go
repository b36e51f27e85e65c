package v0

import (
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// FromWorkload renders a Workload for published clients. What their form has no
// place for (probes, volumes, values from secrets, ...) is left out.
func FromWorkload(w *rikv1alpha1.Workload) Definition {
	d := Definition{
		APIVersion: APIVersion0,
		Kind:       kindOf(&w.Spec.InstanceTemplate),
		Name:       w.Name,
		Spec:       FromTemplate(&w.Spec.InstanceTemplate),
	}
	if version, ok := w.Annotations[AnnotationAPIVersion]; ok {
		d.APIVersion = version
	}
	replicas := int32(1)
	if w.Spec.Replicas != nil {
		replicas = *w.Spec.Replicas
	}
	d.Replicas = &replicas
	return d
}

// FromInstance renders an Instance of a template. The identifiers of workload
// and instance are the caller's choice: UIDs, or names where it has no others.
func FromInstance(i *rikv1alpha1.Instance, t *rikv1alpha1.InstanceTemplate, workloadID, id string) Instance {
	return Instance{
		WorkloadID: workloadID,
		Namespace:  i.Namespace,
		ID:         id,
		Kind:       kindOf(t),
		Status:     StatusOf(i.Status.Phase),
		Spec:       FromTemplate(t),
	}
}

// FromTemplate renders what an instance is made of.
func FromTemplate(t *rikv1alpha1.InstanceTemplate) Spec {
	s := Spec{Containers: []Container{}}
	for i := range t.Containers {
		s.Containers = append(s.Containers, fromContainer(&t.Containers[i]))
	}
	if t.Function != nil {
		s.Function = fromFunction(t.Function)
	}
	return s
}

// kindOf passes App through as it is: no published client can name it, and a
// word it does not know is better than a wrong one.
func kindOf(t *rikv1alpha1.InstanceTemplate) Kind {
	if t.Kind == "" {
		return KindPod
	}
	return Kind(t.Kind)
}

func fromContainer(c *rikv1alpha1.Container) Container {
	out := Container{Name: c.Name, Image: c.Image}
	for i := range c.Env {
		if c.Env[i].ValueFrom == nil {
			out.Env = append(out.Env, EnvVar{Name: c.Env[i].Name, Value: c.Env[i].Value})
		}
	}
	for i := range c.Ports {
		p := &c.Ports[i]
		kind := p.Type
		if kind == "" {
			kind = rikv1alpha1.PortClusterIP
		}
		out.Ports = append(out.Ports, Port{
			Port: p.Port, TargetPort: targetPort(p), Protocol: string(p.Protocol), Type: string(kind),
		})
	}
	return out
}

// targetPort fills the default in: published clients require the field.
func targetPort(p *rikv1alpha1.Port) int32 {
	if p.TargetPort == 0 {
		return p.Port
	}
	return p.TargetPort
}

func fromFunction(f *rikv1alpha1.Function) *Function {
	out := &Function{Execution: Execution{Rootfs: f.Execution.Rootfs}}
	if f.Execution.Rootfs == "" {
		// An OCI image runs as a Function too; the field is the only one in
		// which a published client can see what runs.
		out.Execution.Rootfs = f.Execution.Image
	}
	if f.Exposure != nil {
		out.Exposure = &Exposure{
			Port:       f.Exposure.Port,
			TargetPort: targetPort(f.Exposure),
			Type:       exposureType(f.Exposure.Type),
		}
	}
	return out
}

// exposureType writes NodePort in the case that was published for functions.
func exposureType(t rikv1alpha1.PortType) string {
	if t == rikv1alpha1.PortNodePort {
		return "NodePort"
	}
	return string(t)
}

// StatusOf is the published word for a phase. Completed did not exist; an
// instance that ended by itself was Terminated.
func StatusOf(phase rikv1alpha1.InstancePhase) Status {
	switch phase {
	case "", rikv1alpha1.InstancePending:
		return StatusPending
	case rikv1alpha1.InstanceCompleted:
		return StatusTerminated
	case rikv1alpha1.InstanceUnknown:
		return StatusUnknown
	default:
		return Status(phase)
	}
}
