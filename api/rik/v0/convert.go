package v0

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// ToWorkload returns the Workload that a definition describes. It starts no instances
// (deploy: Manual), as in the published API. The errors are about values that a Workload cannot
// express, with their paths in the definition. The server validates names, numbers and images.
func ToWorkload(d *Definition, namespace string) (*rikv1alpha1.Workload, field.ErrorList) {
	errs := headErrors(d)
	w := &rikv1alpha1.Workload{
		TypeMeta: metav1.TypeMeta{
			APIVersion: rikv1alpha1.SchemeGroupVersion.String(),
			Kind:       "Workload",
		},
		ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: namespace},
	}
	if d.APIVersion == APIVersion1 {
		w.Annotations = map[string]string{AnnotationAPIVersion: APIVersion1}
	}
	replicas := int32(1)
	if d.Replicas != nil {
		replicas = *d.Replicas
	}
	template, templateErrs := ToTemplate(d.Kind, &d.Spec)
	w.Spec = rikv1alpha1.WorkloadSpec{
		Deploy:           rikv1alpha1.DeployManual,
		Replicas:         &replicas,
		InstanceTemplate: template,
	}
	return w, append(errs, templateErrs...)
}

func headErrors(d *Definition) field.ErrorList {
	var errs field.ErrorList
	if d.APIVersion != APIVersion0 && d.APIVersion != APIVersion1 {
		errs = append(errs, field.NotSupported(field.NewPath("apiVersion"), d.APIVersion,
			[]string{APIVersion0, APIVersion1}))
	}
	if d.Name == "" {
		errs = append(errs, field.Required(field.NewPath("name"), ""))
	}
	return errs
}

// ToTemplate returns the template that a published spec describes. It also reads the definitions
// that a published controller sends.
func ToTemplate(kind Kind, s *Spec) (rikv1alpha1.InstanceTemplate, field.ErrorList) {
	path := field.NewPath("spec")
	t := rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.WorkloadKind(kind)}
	var errs field.ErrorList
	switch kind {
	case KindPod:
		errs = podErrors(s, path)
	case KindFunction:
		errs = functionErrors(s, path)
	default:
		errs = field.ErrorList{field.NotSupported(field.NewPath("kind"), kind, []Kind{KindPod, KindFunction})}
	}
	for i := range s.Containers {
		c, containerErrs := toContainer(&s.Containers[i], path.Child("containers").Index(i))
		t.Containers = append(t.Containers, c)
		errs = append(errs, containerErrs...)
	}
	if s.Function != nil {
		f, functionErrs := toFunction(s.Function, path.Child("function"))
		t.Function = f
		errs = append(errs, functionErrs...)
	}
	return t, errs
}

func podErrors(s *Spec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), "a Pod has at least one container"))
	}
	if s.Function != nil {
		errs = append(errs, field.Forbidden(path.Child("function"), "only a workload of kind Function has one"))
	}
	return errs
}

func functionErrors(s *Spec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Containers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("containers"), "only a workload of kind Pod has containers"))
	}
	if s.Function == nil {
		errs = append(errs, field.Required(path.Child("function"), "set what the Function executes"))
	}
	return errs
}

func toContainer(c *Container, path *field.Path) (rikv1alpha1.Container, field.ErrorList) {
	out := rikv1alpha1.Container{Name: c.Name, Image: c.Image}
	for _, e := range c.Env {
		out.Env = append(out.Env, rikv1alpha1.EnvVar{Name: e.Name, Value: e.Value})
	}
	var errs field.ErrorList
	for i := range c.Ports {
		p, portErrs := toPort(&c.Ports[i], portPath(c.Ports, path.Child("ports"), i))
		out.Ports = append(out.Ports, p)
		errs = append(errs, portErrs...)
	}
	return out, errs
}

// portPath returns the path of a port in the document. A single port object has no index.
func portPath(ports Ports, path *field.Path, i int) *field.Path {
	if len(ports) == 1 {
		return path
	}
	return path.Index(i)
}

func toPort(p *Port, path *field.Path) (rikv1alpha1.Port, field.ErrorList) {
	var errs field.ErrorList
	protocol := rikv1alpha1.Protocol(strings.ToUpper(p.Protocol))
	switch protocol {
	case "", rikv1alpha1.ProtocolTCP, rikv1alpha1.ProtocolUDP, rikv1alpha1.ProtocolSCTP:
	default:
		errs = append(errs, field.NotSupported(path.Child("protocol"), p.Protocol,
			[]rikv1alpha1.Protocol{rikv1alpha1.ProtocolTCP, rikv1alpha1.ProtocolUDP, rikv1alpha1.ProtocolSCTP}))
	}
	kind, err := toPortType(p.Type, rikv1alpha1.PortClusterIP, path.Child("type"))
	if err != nil {
		errs = append(errs, err)
	}
	return rikv1alpha1.Port{Port: p.Port, TargetPort: p.TargetPort, Protocol: protocol, Type: kind}, errs
}

// toPortType parses a type in upper or lower case. The published documents use nodePort for
// containers and NodePort for functions.
func toPortType(s string, absent rikv1alpha1.PortType, path *field.Path) (rikv1alpha1.PortType, *field.Error) {
	if s == "" {
		return absent, nil
	}
	known := []rikv1alpha1.PortType{
		rikv1alpha1.PortClusterIP, rikv1alpha1.PortNodePort, rikv1alpha1.PortLoadBalancer,
	}
	for _, k := range known {
		if strings.EqualFold(s, string(k)) {
			return k, nil
		}
	}
	return "", field.NotSupported(path, s, known)
}

func toFunction(f *Function, path *field.Path) (*rikv1alpha1.Function, field.ErrorList) {
	out := &rikv1alpha1.Function{Execution: rikv1alpha1.FunctionExecution{Rootfs: f.Execution.Rootfs}}
	var errs field.ErrorList
	if f.Execution.Rootfs == "" {
		errs = append(errs, field.Required(path.Child("execution", "rootfs"), "the URL of a root file system"))
	}
	if f.Exposure == nil {
		return out, errs
	}
	kind, err := toPortType(f.Exposure.Type, rikv1alpha1.PortNodePort, path.Child("exposure", "type"))
	if err != nil {
		errs = append(errs, err)
	}
	out.Exposure = &rikv1alpha1.Port{Port: f.Exposure.Port, TargetPort: f.Exposure.TargetPort, Type: kind}
	return out, errs
}
