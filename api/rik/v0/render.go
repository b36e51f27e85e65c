package v0

import (
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// FromWorkload renders a Workload for published clients. It leaves out what a Definition cannot
// express, such as probes, volumes and values from Secrets.
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

// FromInstance renders an Instance of a template. The caller chooses the identifiers of the
// workload and the instance: UIDs, or names if it has no UIDs.
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

// FromTemplate renders the template of an instance.
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

// kindOf returns the kind of a template. It returns App unchanged, although published clients do
// not know it, because another kind would be wrong.
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

// targetPort returns the target port or its default. Published clients require the field.
func targetPort(p *rikv1alpha1.Port) int32 {
	if p.TargetPort == 0 {
		return p.Port
	}
	return p.TargetPort
}

func fromFunction(f *rikv1alpha1.Function) *Function {
	out := &Function{Execution: Execution{Rootfs: f.Execution.Rootfs}}
	if f.Execution.Rootfs == "" {
		// A Function can also run an OCI image. A published client can show the image only in
		// this field.
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

// exposureType returns a type in the case that is published for functions: NodePort.
func exposureType(t rikv1alpha1.PortType) string {
	if t == rikv1alpha1.PortNodePort {
		return "NodePort"
	}
	return string(t)
}

// StatusOf returns the published status for a phase. The published API has no Completed. It reports
// an instance that ended by itself as Terminated.
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
