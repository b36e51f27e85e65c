package network

import (
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
)

// serves reports whether instances of a template can be reached at a virtual address.
func serves(t *rikv1alpha1.InstanceTemplate) bool { return len(t.AllPorts()) > 0 }

func hasType(t *rikv1alpha1.InstanceTemplate, want rikv1alpha1.PortType) bool {
	return slices.ContainsFunc(t.AllPorts(), func(p rikv1alpha1.Port) bool { return p.Type == want })
}

// portsOf returns the ports of a template with their defaults set.
func portsOf(t *rikv1alpha1.InstanceTemplate) []*nodev1.ServicePort {
	all := t.AllPorts()
	if len(all) == 0 {
		return nil
	}
	out := make([]*nodev1.ServicePort, 0, len(all))
	for _, p := range all {
		s := &nodev1.ServicePort{
			Name: p.Name, Port: p.Port, TargetPort: p.TargetPort, Protocol: string(p.Protocol), Type: string(p.Type),
		}
		if s.TargetPort == 0 {
			s.TargetPort = s.Port
		}
		if s.Protocol == "" {
			s.Protocol = string(rikv1alpha1.ProtocolTCP)
		}
		if s.Type == "" {
			s.Type = string(rikv1alpha1.PortClusterIP)
		}
		out = append(out, s)
	}
	return out
}

// exposure holds what all instances of a revision have in common.
type exposure struct {
	ports []*nodev1.ServicePort
	// onHost means that the instances have no addresses of their own.
	onHost bool
}

// exposureOf returns false for a revision that serves no ports.
func exposureOf(r *rikv1alpha1.WorkloadRevision) (exposure, bool) {
	ports := portsOf(&r.Template)
	return exposure{
		ports:  ports,
		onHost: r.Template.HostNetwork,
	}, len(ports) > 0
}
