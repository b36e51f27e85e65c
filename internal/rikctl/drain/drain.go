// Package drain decides which instances of a node may go next.
//
// Plan is pure: it is called again and again with what was last seen, and its
// answer holds for that moment. An instance of an Automatic workload may go when
// no more than spec.disruption.maxUnavailable of the workload's instances would
// then be not ready; its replacement must be ready before the next one goes. An
// instance of a Manual workload is replaced by nobody and goes only when forced.
package drain

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// State is what was last seen.
type State struct {
	Node string
	// Workloads by Key; one that is missing here does not exist any more.
	Workloads map[string]*rikv1alpha1.Workload
	// Instances are those on the node, and all others of their workloads.
	Instances []rikv1alpha1.Instance
	// Baseline is how many instances of a workload were ready at first, by Key.
	// The drain ends when as many are ready again.
	Baseline map[string]int
	// Force lets instances go that nothing replaces, or that the workload's
	// disruption would never let go.
	Force bool
}

// Step is what may be done now.
type Step struct {
	// Evict may all be deleted at once.
	Evict []*rikv1alpha1.Instance
	// Blocked says, per instance, what forbids it for good.
	Blocked []string
	// Waiting says what the drain waits for.
	Waiting []string
	// Done is set when nothing is left on the node and everything is as ready as
	// it was.
	Done bool
}

// Key names a workload, also for the State's maps.
func Key(namespace, workload string) string { return namespace + "/" + workload }

// KeyOf is the Key of an instance's workload.
func KeyOf(i *rikv1alpha1.Instance) string { return Key(i.Namespace, i.Spec.Workload) }

// Plan decides the next step.
func Plan(s State) Step {
	var step Step
	for _, key := range s.keys() {
		s.plan(key, &step)
	}
	step.Done = len(step.Evict) == 0 && len(step.Blocked) == 0 && len(step.Waiting) == 0
	return step
}

// keys are the workloads in a fixed order, so that equal states plan equally.
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

// planAutomatic lets go what is not ready anyway, and of the ready ones as many
// as the budget has left.
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
			fmt.Sprintf("workload %s to have enough ready instances: %d more have to go", key, held))
	}
}

// onNode are the instances of a workload on the node that run, and how many of
// them are already on their way out. What has ended holds nothing there.
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

// Ready counts the instances of a workload that are ready and stay.
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

// maxUnavailable resolves the bound; a percentage is rounded up, as the API says.
func maxUnavailable(w *rikv1alpha1.Workload) int {
	bound := w.Spec.Disruption.MaxUnavailable
	if bound == nil {
		return 1
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(bound, wanted(w), true)
	if err != nil || n < 0 {
		// The server lets no such value pass; the careful reading of one is none.
		return 0
	}
	return n
}
