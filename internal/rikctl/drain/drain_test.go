package drain

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func workload(name string, deploy rikv1alpha1.DeployMode, replicas int32, bound *intstr.IntOrString) *rikv1alpha1.Workload {
	w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	w.Spec.Deploy, w.Spec.Replicas, w.Spec.Disruption.MaxUnavailable = deploy, &replicas, bound
	return w
}

func instance(w, name, node string, ready bool) rikv1alpha1.Instance {
	i := rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	i.Spec.Workload, i.Spec.NodeName = w, node
	i.Status.Ready, i.Status.Phase = ready, rikv1alpha1.InstanceRunning
	return i
}

func leaving(i rikv1alpha1.Instance) rikv1alpha1.Instance {
	now := metav1.NewTime(time.Unix(1, 0))
	i.DeletionTimestamp = &now
	return i
}

func ended(i rikv1alpha1.Instance) rikv1alpha1.Instance {
	i.Status.Phase = rikv1alpha1.InstanceCompleted
	return i
}

func bound(s string) *intstr.IntOrString {
	v := intstr.Parse(s)
	return &v
}

func names(instances []*rikv1alpha1.Instance) []string {
	var out []string
	for _, i := range instances {
		out = append(out, i.Name)
	}
	return out
}

func TestPlan(t *testing.T) {
	t.Parallel()
	const auto, manual = rikv1alpha1.DeployAutomatic, rikv1alpha1.DeployManual
	tests := []struct {
		name      string
		workloads []*rikv1alpha1.Workload
		instances []rikv1alpha1.Instance
		baseline  map[string]int
		force     bool
		evict     []string
		blocked   int
		waiting   int
		done      bool
	}{
		{name: "nothing there", done: true},
		{name: "another node's", workloads: []*rikv1alpha1.Workload{workload("web", auto, 1, nil)},
			instances: []rikv1alpha1.Instance{instance("web", "a", "n2", true)}, done: true},
		{name: "one at a time by default", workloads: []*rikv1alpha1.Workload{workload("web", auto, 3, nil)},
			instances: []rikv1alpha1.Instance{instance("web", "b", "n1", true), instance("web", "a", "n1", true), instance("web", "c", "n2", true)},
			evict:     []string{"a"}, waiting: 1},
		{name: "two of four by percentage", workloads: []*rikv1alpha1.Workload{workload("web", auto, 4, bound("40%"))},
			instances: []rikv1alpha1.Instance{instance("web", "a", "n1", true), instance("web", "b", "n1", true), instance("web", "c", "n1", true), instance("web", "d", "n2", true)},
			evict:     []string{"a", "b"}, waiting: 1},
		{name: "not while one is not ready elsewhere", workloads: []*rikv1alpha1.Workload{workload("web", auto, 2, nil)},
			instances: []rikv1alpha1.Instance{instance("web", "a", "n1", true), instance("web", "b", "n2", false)}, waiting: 1},
		{name: "what is not ready costs nothing", workloads: []*rikv1alpha1.Workload{workload("web", auto, 2, nil)},
			instances: []rikv1alpha1.Instance{instance("web", "a", "n1", true), instance("web", "b", "n1", false)}, evict: []string{"b"}, waiting: 1},
		{name: "one is on its way out", workloads: []*rikv1alpha1.Workload{workload("web", auto, 2, nil)},
			instances: []rikv1alpha1.Instance{leaving(instance("web", "a", "n1", true)), instance("web", "b", "n1", true)}, waiting: 2},
		{name: "ended ones stay", workloads: []*rikv1alpha1.Workload{workload("job", auto, 1, nil)},
			instances: []rikv1alpha1.Instance{ended(instance("job", "a", "n1", false))}, done: true},
		{name: "manual is blocked", workloads: []*rikv1alpha1.Workload{workload("db", manual, 1, nil)},
			instances: []rikv1alpha1.Instance{instance("db", "a", "n1", true), instance("db", "b", "n1", true)}, blocked: 2},
		{name: "manual is forced", force: true, workloads: []*rikv1alpha1.Workload{workload("db", manual, 1, nil)},
			instances: []rikv1alpha1.Instance{instance("db", "a", "n1", true)}, evict: []string{"a"}},
		{name: "a bound of zero blocks", workloads: []*rikv1alpha1.Workload{workload("web", auto, 2, bound("0"))},
			instances: []rikv1alpha1.Instance{instance("web", "a", "n1", true)}, blocked: 1},
		{name: "orphans go", instances: []rikv1alpha1.Instance{instance("gone", "a", "n1", true)}, evict: []string{"a"}},
		{name: "replacements are awaited", workloads: []*rikv1alpha1.Workload{workload("web", auto, 2, nil)},
			instances: []rikv1alpha1.Instance{instance("web", "b", "n2", true)}, baseline: map[string]int{"default/web": 2}, waiting: 1},
		{name: "not for more than were ready before", workloads: []*rikv1alpha1.Workload{workload("web", auto, 5, nil)},
			instances: []rikv1alpha1.Instance{instance("web", "b", "n2", true)}, baseline: map[string]int{"default/web": 1}, done: true},
		{name: "the last replacement is not there yet", workloads: []*rikv1alpha1.Workload{workload("web", auto, 1, nil)},
			baseline: map[string]int{"default/web": 1}, waiting: 1},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := State{Node: "n1", Instances: tc.instances, Baseline: tc.baseline, Force: tc.force, Workloads: map[string]*rikv1alpha1.Workload{}}
			for _, w := range tc.workloads {
				s.Workloads[Key(w.Namespace, w.Name)] = w
			}
			got := Plan(s)
			if diff := cmp.Diff(tc.evict, names(got.Evict)); diff != "" {
				t.Errorf("Plan evicts (-want +got):\n%s", diff)
			}
			if len(got.Blocked) != tc.blocked || len(got.Waiting) != tc.waiting || got.Done != tc.done {
				t.Errorf("Plan = blocked %q, waiting %q, done %v; want %d, %d, %v",
					got.Blocked, got.Waiting, got.Done, tc.blocked, tc.waiting, tc.done)
			}
		})
	}
}

// TestDrainEndsWithinTheBudget follows the plan on a cluster whose controller replaces evicted
// instances. The number of ready instances must never be below the limit.
func TestDrainEndsWithinTheBudget(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		replicas := rapid.IntRange(1, 12).Draw(t, "replicas")
		w := workload("web", rikv1alpha1.DeployAutomatic, int32(replicas), bound(rapid.SampledFrom([]string{"1", "2", "10%", "50%", "100%"}).Draw(t, "bound")))
		s := State{Node: "n1", Workloads: map[string]*rikv1alpha1.Workload{"default/web": w}, Baseline: map[string]int{}}
		for n := range replicas {
			s.Instances = append(s.Instances, instance("web", fmt.Sprint("i", n),
				rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node"), rapid.Bool().Draw(t, "ready")))
		}
		s.Baseline["default/web"] = Ready(s.Instances, "default/web")
		floor := min(s.Baseline["default/web"], replicas-maxUnavailable(w))
		for round := 0; ; round++ {
			if round > 4*replicas+4 {
				t.Fatalf("the drain does not end; last state %v", s.Instances)
			}
			step := Plan(s)
			if step.Done {
				break
			}
			s.Instances = replace(s.Instances, step.Evict, round)
			if ready := Ready(s.Instances, "default/web"); ready < floor {
				t.Fatalf("%d instances are ready, want at least %d", ready, floor)
			}
			for i := range s.Instances {
				s.Instances[i].Status.Ready = true // replacements start between two rounds
			}
		}
		for _, i := range s.Instances {
			if i.Spec.NodeName == "n1" {
				t.Errorf("instance %s is still on the node", i.Name)
			}
		}
	})
}

func replace(instances []rikv1alpha1.Instance, evicted []*rikv1alpha1.Instance, round int) []rikv1alpha1.Instance {
	gone := map[string]bool{}
	for _, i := range evicted {
		gone[i.Name] = true
	}
	var out []rikv1alpha1.Instance
	for _, i := range instances {
		if gone[i.Name] {
			i = instance("web", fmt.Sprint(i.Name, "-", round), "n2", false)
		}
		out = append(out, i)
	}
	return out
}

// TestProgress checks the counts through the steps of a drain.
func TestProgress(t *testing.T) {
	t.Parallel()
	moving := map[types.UID]bool{}
	named := func(i rikv1alpha1.Instance) rikv1alpha1.Instance {
		i.UID = types.UID(i.Name)
		return i
	}
	a, b, other := named(instance("web", "web-a", "n", true)), named(instance("web", "web-b", "n", true)), named(instance("web", "web-c", "m", true))
	for _, step := range []struct {
		instances []rikv1alpha1.Instance
		waiting   []string
		want      string
	}{
		{nil, nil, ""},
		{[]rikv1alpha1.Instance{a, b, other}, []string{"the drain of node m"}, "0 of 2 instances moved, waiting for the drain of node m"},
		{[]rikv1alpha1.Instance{leaving(a), b, other}, []string{"1 instances of workload default/web to end"}, "0 of 2 instances moved, waiting for instance default/web-a: Terminating"},
		{[]rikv1alpha1.Instance{leaving(b), other}, []string{"1 instances of workload default/web to end", "the replacements in workload default/web to be ready"},
			"1 of 2 instances moved, waiting for instance default/web-b: Terminating; the replacements in workload default/web to be ready"},
		{[]rikv1alpha1.Instance{ended(b), other}, []string{"the replacements in workload default/web to be ready"}, "2 of 2 instances moved, waiting for the replacements in workload default/web to be ready"},
	} {
		if got := progress(State{Node: "n", Instances: step.instances}, Step{Waiting: step.waiting}, moving).Text(); got != step.want {
			t.Errorf("progress() = %q, want %q", got, step.want)
		}
	}
}
