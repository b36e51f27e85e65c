// Package drain decides which instances of a node may be evicted next, and evicts them.
//
// An Executor reads the state, calls Plan and deletes instances, until the drain is done. It saves
// its progress in annotations, so that another Executor can continue.
//
// Plan is pure. The caller calls it again for each new state, and each result is valid only for
// that state. An instance of an Automatic workload may be evicted if at most
// spec.disruption.maxUnavailable of the workload's instances are not ready after that. Its
// replacement must be ready before the next eviction. An instance of a Manual workload gets no
// replacement, so it is evicted only with Force.
package drain

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// State is the last observed state.
type State struct {
	Node string
	// Workloads by Key; a missing workload no longer exists.
	Workloads map[string]*rikv1alpha1.Workload
	// Instances are those on the node, and all others of their workloads.
	Instances []rikv1alpha1.Instance
	// Baseline is the number of ready instances of each workload at the start, by Key. The drain
	// ends when as many are ready again.
	Baseline map[string]int
	// Force evicts instances that get no replacement, or that the workload's disruption budget
	// never allows to evict.
	Force bool
}

// Step is what the caller may do now.
type Step struct {
	// Evict lists instances that may all be deleted at once.
	Evict []*rikv1alpha1.Instance
	// Blocked says, per instance, why it can never be evicted.
	Blocked []string
	// Waiting lists what the drain waits for.
	Waiting []string
	// Done is set if no instance is left on the node and each workload has its baseline of ready
	// instances.
	Done bool
}

// Key identifies a workload in the State's maps.
func Key(namespace, workload string) string { return namespace + "/" + workload }

// KeyOf returns the Key of an instance's workload.
func KeyOf(i *rikv1alpha1.Instance) string { return Key(i.Namespace, i.Spec.Workload) }

// Plan returns the next step.
func Plan(s State) Step {
	var step Step
	for _, key := range s.keys() {
		s.plan(key, &step)
	}
	step.Done = len(step.Evict) == 0 && len(step.Blocked) == 0 && len(step.Waiting) == 0
	return step
}

// keys returns the workloads in a fixed order, so that equal states have equal plans.
func (s State) keys() []string {
	var keys []string
	for i := range s.Instances {
		keys = append(keys, KeyOf(&s.Instances[i]))
	}
	for key := range s.Baseline {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (s State) plan(key string, step *Step) {
	here, leaving := s.onNode(key)
	if leaving > 0 {
		step.Waiting = append(step.Waiting, fmt.Sprintf("%d instances of workload %s to end", leaving, key))
	}
	w := s.Workloads[key]
	switch {
	case w == nil:
		step.Evict = append(step.Evict, here...)
		return
	case w.Spec.Deploy != rikv1alpha1.DeployAutomatic:
		s.planUnreplaced(here, "deploy: Manual, nothing replaces it", step)
		return
	}
	budget := maxUnavailable(w)
	if budget == 0 {
		s.planUnreplaced(here, "its workload's disruption.maxUnavailable is 0", step)
	} else {
		s.planAutomatic(key, w, here, budget, step)
	}
	if len(here) == 0 && Ready(s.Instances, key) < min(s.Baseline[key], wanted(w)) {
		step.Waiting = append(step.Waiting, fmt.Sprintf("the replacements in workload %s to be ready", key))
	}
}

func (s State) planUnreplaced(here []*rikv1alpha1.Instance, why string, step *Step) {
	if s.Force {
		step.Evict = append(step.Evict, here...)
		return
	}
	for _, i := range here {
		step.Blocked = append(step.Blocked, fmt.Sprintf("instance %s/%s: %s", i.Namespace, i.Name, why))
	}
}

// planAutomatic evicts the instances that are not ready, and as many ready ones as the budget
// still allows.
func (s State) planAutomatic(key string, w *rikv1alpha1.Workload, here []*rikv1alpha1.Instance, budget int, step *Step) {
	left := budget - (wanted(w) - Ready(s.Instances, key))
	held := 0
	for _, i := range here {
		switch {
		case !i.Status.Ready:
			step.Evict = append(step.Evict, i)
		case left > 0:
			left--
			step.Evict = append(step.Evict, i)
		default:
			held++
		}
	}
	if held > 0 {
		step.Waiting = append(step.Waiting,
			fmt.Sprintf("workload %s to have enough ready instances; %d instances remain to be deleted", key, held))
	}
}

// onNode returns the running instances of a workload on the node, and how many of them are
// already being deleted. Instances that have ended do not count.
func (s State) onNode(key string) (here []*rikv1alpha1.Instance, leaving int) {
	for n := range s.Instances {
		i := &s.Instances[n]
		switch {
		case KeyOf(i) != key || i.Spec.NodeName != s.Node || i.Status.Phase.Ended():
		case i.DeletionTimestamp != nil:
			leaving++
		default:
			here = append(here, i)
		}
	}
	slices.SortFunc(here, func(a, b *rikv1alpha1.Instance) int { return strings.Compare(a.Name, b.Name) })
	return here, leaving
}

// Ready counts the instances of a workload that are ready and are not being deleted.
func Ready(instances []rikv1alpha1.Instance, key string) int {
	n := 0
	for i := range instances {
		o := &instances[i]
		if KeyOf(o) == key && o.Status.Ready && o.DeletionTimestamp == nil && !o.Status.Phase.Ended() {
			n++
		}
	}
	return n
}

func wanted(w *rikv1alpha1.Workload) int {
	if w.Spec.Replicas == nil {
		return 1
	}
	return int(*w.Spec.Replicas)
}

// maxUnavailable resolves the limit. It rounds a percentage up, as the API defines.
func maxUnavailable(w *rikv1alpha1.Workload) int {
	bound := w.Spec.Disruption.MaxUnavailable
	if bound == nil {
		return 1
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(bound, wanted(w), true)
	if err != nil || n < 0 {
		// The server refuses such a value; 0 is the safe result.
		return 0
	}
	return n
}
