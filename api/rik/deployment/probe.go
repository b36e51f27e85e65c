package deployment

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func probe(p *corev1.Probe, named []corev1.ContainerPort) *rikv1alpha1.Probe {
	if p == nil {
		return nil
	}
	out := &rikv1alpha1.Probe{
		InitialDelaySeconds: p.InitialDelaySeconds,
		PeriodSeconds:       atLeastOne(p.PeriodSeconds, 10),
		TimeoutSeconds:      atLeastOne(p.TimeoutSeconds, 1),
		SuccessThreshold:    atLeastOne(p.SuccessThreshold, 1),
		FailureThreshold:    atLeastOne(p.FailureThreshold, 3),
	}
	if e := p.Exec; e != nil {
		out.Exec = &rikv1alpha1.ExecProbe{Command: words(e.Command)}
	}
	if s := p.TCPSocket; s != nil {
		number, _ := portNumber(s.Port, named)
		out.TCP = &rikv1alpha1.TCPProbe{Port: number}
	}
	if h := p.HTTPGet; h != nil {
		out.HTTP = request(h, named)
	}
	return out
}

func atLeastOne(value, otherwise int32) int32 {
	if value == 0 {
		return otherwise
	}
	return value
}

func request(h *corev1.HTTPGetAction, named []corev1.ContainerPort) *rikv1alpha1.HTTPProbe {
	number, _ := portNumber(h.Port, named)
	out := &rikv1alpha1.HTTPProbe{Path: h.Path, Port: number, Scheme: string(h.Scheme)}
	if out.Path == "" {
		out.Path = "/"
	}
	if out.Scheme == "" {
		out.Scheme = string(corev1.URISchemeHTTP)
	}
	for _, header := range h.HTTPHeaders {
		if out.Headers == nil {
			out.Headers = map[string]string{}
		}
		out.Headers[header.Name] = header.Value
	}
	return out
}

// portNumber returns the number of a port, which can be a name. It is not ok if the container has
// no port with that name.
func portNumber(port intstr.IntOrString, named []corev1.ContainerPort) (number int32, ok bool) {
	if port.Type == intstr.Int {
		return port.IntVal, true
	}
	for _, p := range named {
		if p.Name == port.StrVal {
			return p.ContainerPort, true
		}
	}
	// A text can contain a number. Kubernetes accepts that too.
	if n := port.IntValue(); n > 0 && n <= math.MaxUint16 {
		return int32(n), true
	}
	return 0, false
}
