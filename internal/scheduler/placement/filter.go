package placement

import (
	"fmt"
	"slices"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// outcome is the result of the filters for a node: fits, or the reason for its rejection.
type outcome uint8

const (
	fits outcome = iota
	notReady
	unschedulable
	diskPressure
	tainted
	selectorMismatch
	affinityMismatch
	kindMissing
	machineMissing
	runtimeMissing
	networkMissing
	networkBroken
	portForeign
	lacksCPU
	lacksMemory
	lacksDisk
	lacksInstances
	portTaken
	apart   // instanceRequired
	repels  // instanceForbidden, of this shape or of another
	skewed  // topologySpread
	unknown // not set by SetNode
	outcomes
)

// filters maps each outcome to its filter. words describes each outcome to people, after a
// number of nodes.
var (
	filters = [outcomes]string{
		notReady: "Readiness", unschedulable: "Unschedulable", diskPressure: "DiskPressure",
		tainted: "Taints", selectorMismatch: "NodeSelector", affinityMismatch: "NodeAffinity",
		kindMissing: "WorkloadKind", machineMissing: "MicroVMs", runtimeMissing: "Runtime", networkMissing: "Network", networkBroken: "Network", portForeign: "HostPorts",
		lacksCPU: "Resources", lacksMemory: "Resources", lacksDisk: "Resources", lacksInstances: "Resources",
		portTaken: "HostPorts", apart: "InstanceAffinity", repels: "InstanceAntiAffinity", skewed: "TopologySpread",
	}
	words = [outcomes]string{
		notReady: "not ready", unschedulable: "unschedulable", diskPressure: "under disk pressure",
		tainted: "with a taint that is not tolerated", selectorMismatch: "not matching the node selector",
		affinityMismatch: "not matching the node affinity", kindMissing: "not able to run this kind",
		machineMissing: "not able to run microVMs",
		runtimeMissing: "without the runtime", networkMissing: "without a network for instances",
		networkBroken: "with a network that does not work",
		portForeign:   "with a port used by the machine itself", lacksCPU: "with too little cpu", lacksMemory: "with too little memory",
		lacksDisk: "with too little disk", lacksInstances: "with too many instances", portTaken: "with a host port taken",
		apart:  "away from the instances it must be with",
		repels: "with instances it must be apart from", skewed: "that would break the topology spread",
	}
	reasons = [outcomes]string{
		notReady: "NodesNotReady", unschedulable: "NodesUnschedulable", diskPressure: "NodesUnderDiskPressure",
		tainted: "TaintsNotTolerated", selectorMismatch: "NodeSelectorMismatch", affinityMismatch: "NodeAffinityMismatch",
		kindMissing: "KindNotSupported", machineMissing: "MicroVMsNotSupported", runtimeMissing: "RuntimeNotSupported",
		networkMissing: "NodesWithoutNetwork", networkBroken: "NodeNetworkUnavailable", portForeign: "HostPortTaken",
		lacksCPU: "InsufficientCPU", lacksMemory: "InsufficientMemory", lacksDisk: "InsufficientDisk",
		lacksInstances: "TooManyInstances", portTaken: "HostPortTaken", apart: "InstanceAffinity",
		repels: "InstanceAntiAffinity", skewed: "TopologySpread",
	}
)

// checkStatic applies the filters that do not depend on placed instances.
func (s *Shape) checkStatic(n *node) outcome {
	switch {
	case !n.known:
		return unknown
	case !n.Ready:
		return notReady
	case n.Unschedulable:
		return unschedulable
	case n.DiskPressure:
		return diskPressure
	case s.untolerated(n, rikv1alpha1.TaintNoSchedule, rikv1alpha1.TaintNoExecute) != nil:
		return tainted
	case !s.selects(n):
		return selectorMismatch
	case !s.nodeAffine(n):
		return affinityMismatch
	case !s.kindOn(n) && s.virtual:
		return machineMissing
	case !s.kindOn(n):
		return kindMissing
	case !s.runtimeOn(n):
		return runtimeMissing
	case n.NoNetwork && s.networked:
		return networkMissing
	case n.NetworkTrouble != "" && !n.NoNetwork && !s.hostNetwork:
		return networkBroken
	}
	if _, used := s.foreignPort(n); used {
		return portForeign
	}
	return fits
}

// foreignPort finds a port of the shape that a process of the machine uses.
func (s *Shape) foreignPort(n *node) (Port, bool) {
	if len(n.UsedPorts) == 0 {
		return Port{}, false
	}
	for _, p := range s.clusterPorts {
		if hostNetworkOnly, used := n.UsedPorts[p]; used && !hostNetworkOnly {
			return p, true
		}
	}
	for _, p := range s.nodePorts {
		if _, used := n.UsedPorts[p]; used {
			return p, true
		}
	}
	return Port{}, false
}

// untolerated finds a taint with one of the effects that the shape does not tolerate.
func (s *Shape) untolerated(n *node, effects ...rikv1alpha1.TaintEffect) *rikv1alpha1.Taint {
	for i := range n.Taints {
		if slices.Contains(effects, n.Taints[i].Effect) && !n.Taints[i].Tolerated(s.tolerations) {
			return &n.Taints[i]
		}
	}
	return nil
}

func (s *Shape) selects(n *node) bool {
	for key, want := range s.nodeSelector {
		if have, ok := n.Labels[key]; !ok || have != want {
			return false
		}
	}
	return true
}

// nodeAffine reports whether one of the required node terms matches, or none is set.
func (s *Shape) nodeAffine(n *node) bool {
	if len(s.nodeRequired) == 0 {
		return true
	}
	for _, selector := range s.nodeRequired {
		if selector.Matches(labelsOf(n)) {
			return true
		}
	}
	return false
}

func (s *Shape) kindOn(n *node) bool {
	if len(n.Kinds) == 0 {
		return s.kind == rikv1alpha1.KindPod
	}
	return slices.Contains(n.Kinds, s.kind)
}

// defaultRuntime is the runtime of a template that names none.
const defaultRuntime = "runc"

func (s *Shape) runtimeOn(n *node) bool {
	if s.kind != rikv1alpha1.KindPod || s.runtime == "" {
		return true
	}
	if len(n.Runtimes) == 0 {
		return s.runtime == defaultRuntime
	}
	return slices.Contains(n.Runtimes, s.runtime)
}

// checkPlaced applies the filters that depend on the instances on the node itself.
func (s *Snapshot) checkPlaced(st *shapeState, n *node) outcome {
	if v := n.free.lacking(&st.shape.requests); v != fits {
		return v
	}
	for _, p := range st.shape.nodePorts {
		if n.ports[p] > 0 {
			return portTaken
		}
	}
	for _, t := range st.forbidden {
		if s.perNode(t.key) && matchingAt(t, n) > 0 {
			return repels
		}
	}
	for _, t := range st.repelled {
		if s.perNode(t.key) && repellingAt(t, n) > 0 {
			return repels
		}
	}
	return fits
}

func matchingAt(t *term, n *node) int32 {
	domain, ok := n.Labels[t.key]
	if !ok {
		return 0
	}
	if c := t.cells[domain]; c != nil {
		return c.matching
	}
	return 0
}

func repellingAt(t *term, n *node) int32 {
	domain, ok := n.Labels[t.key]
	if !ok {
		return 0
	}
	if c := t.cells[domain]; c != nil {
		return c.repelling
	}
	return 0
}

// clusterPortTaken finds a port of the shape that another workload reserves on all nodes, or on
// which an instance in its node's own network listens.
func (s *Snapshot) clusterPortTaken(st *shapeState) (Port, bool) {
	for _, p := range st.shape.clusterPorts {
		if takenByOther(s.clusterPorts[p], st.workload) || takenByOther(s.ownPorts[p], st.workload) {
			return p, true
		}
	}
	for _, p := range st.shape.nodePorts {
		if takenByOther(s.clusterPorts[p], st.workload) {
			return p, true
		}
	}
	return Port{}, false
}

func takenByOther(takers map[*workloadState]int32, w *workloadState) bool {
	for taker := range takers {
		if taker != w {
			return true
		}
	}
	return false
}

// summary says how many of n nodes each filter rejected, the largest group first. It returns
// the reason of that group.
func summary(n int, rejected *[outcomes]int32) (reason, message string) {
	if n == 0 {
		return "NoNodes", "no node has joined"
	}
	var order []outcome
	for v := notReady; v < unknown; v++ {
		if rejected[v] > 0 {
			order = append(order, v)
		}
	}
	slices.SortStableFunc(order, func(a, b outcome) int { return int(rejected[b] - rejected[a]) })
	parts := make([]string, 0, len(order))
	for _, v := range order {
		parts = append(parts, fmt.Sprintf("%d %s", rejected[v], words[v]))
	}
	if len(order) > 0 {
		reason = reasons[order[0]]
	}
	return reason, fmt.Sprintf("0 of %d nodes fit: %s", n, strings.Join(parts, ", "))
}
