package rikctl

import (
	"io"
	"testing"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/drain"
)

// TestServerDrainsTakeTurns checks that two simultaneous drains do not both evict an instance of
// the workload.
func TestServerDrainsTakeTurns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node, other := s.node(t), s.node(t)
	s.workload(t, "web", "  deploy: Automatic\n  replicas: 2\n")
	for name, on := range map[string]string{"web-1": node, "web-2": other} {
		s.do(t, "create", "instance", "-w", "web", "--name", name).check(t, clierror.ExitOK)
		s.runningOn(t, name, on)
	}
	s.do(t, "cordon", node).check(t, clierror.ExitOK)
	s.do(t, "cordon", other).check(t, clierror.ExitOK)
	drains := func(node string) (*drain.Executor, drain.State) {
		d := &drain.Executor{
			Client: s.c, Node: node, Out: io.Discard,
			Options: drain.Options{Grace: -1}, Baseline: map[string]int{}, Kept: map[string]int{},
		}
		state, err := d.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d, state
	}
	one, seenByOne := drains(node)
	two, seenByTwo := drains(other)
	for _, d := range []struct {
		*drain.Executor
		seen drain.State
	}{{one, seenByOne}, {two, seenByTwo}} {
		step := drain.Plan(d.seen)
		if len(step.Evict) != 1 {
			t.Fatalf("node %s: the plan is %+v, want one to go", d.Node, step)
		}
		if err := d.EvictAll(t.Context(), d.seen, &step); err != nil {
			t.Fatal(err)
		}
	}
	if _, now := drains(other); drain.Ready(now.Instances, drain.Key(s.namespace, "web")) != 1 {
		t.Error("both let one go, and the workload allows one to be away")
	}

	// A drain that was interrupted during its turn blocks others until its node is uncordoned.
	s.do(t, "uncordon", node).check(t, clierror.ExitOK)
	s.confirmEnd(t, "web-1")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-3").check(t, clierror.ExitOK)
	s.runningOn(t, "web-3", node)
	s.do(t, "cordon", node).check(t, clierror.ExitOK)
	s.do(t, "annotate", "workload", "web", drain.AnnotationTurn+"="+node).check(t, clierror.ExitOK)
	s.drainsNot(t, other, "the drain of node "+node, "uncordon the node")
	forced, seen := drains(other)
	forced.Options.Force = true
	if mine, _, err := forced.Turn(t.Context(), seen.Workloads[drain.Key(s.namespace, "web")]); !mine || err != nil {
		t.Errorf("by force the turn is taken: %v, %v", mine, err)
	}
	s.do(t, "annotate", "workload", "web", "--overwrite", drain.AnnotationTurn+"="+node).check(t, clierror.ExitOK)
	s.do(t, "uncordon", node).check(t, clierror.ExitOK)
	s.drainsNot(t, other, "instance/web-2")
	if r := s.do(t, "get", "workload", "web", "-o", "jsonpath={.metadata.annotations}"); r.out != "" {
		t.Errorf("after its turn the workload keeps %s", r.out)
	}
}
