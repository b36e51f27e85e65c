package scheduler

import (
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/scheduler/placement"
)

// usedPorts returns the ports in use on a node's machine. The value is true for ports that
// conflict only with instances in the node's own network.
func usedPorts(sent []*schedulerv1.UsedPort) map[placement.Port]bool {
	used := make(map[placement.Port]bool, len(sent))
	for _, p := range sent {
		at := placement.Port{Protocol: rikv1alpha1.Protocol(p.Protocol), Number: p.Port}
		only, known := used[at]
		used[at] = p.HostNetworkOnly && (only || !known)
	}
	return used
}
