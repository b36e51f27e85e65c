package workload

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

var states = []string{"up", "starting", "pending", "completed", "failed", "lost", "ending"}

func drawSpec(t *rapid.T) *rikv1alpha1.WorkloadSpec {
	bound := func(name string) *intstr.IntOrString {
		v := intstr.FromInt32(rapid.Int32Range(0, 4).Draw(t, name))
		if rapid.Bool().Draw(t, name+" in percent") {
			v = intstr.FromString(fmt.Sprintf("%d%%", rapid.IntRange(0, 100).Draw(t, name+" percent")))
		}
		return &v
	}
	return spec(rapid.Int32Range(0, 8).Draw(t, "replicas"), func(s *rikv1alpha1.WorkloadSpec) {
		s.Deploy = rapid.SampledFrom([]rikv1alpha1.DeployMode{"Automatic", "Manual"}).Draw(t, "deploy")
		s.Strategy.Type = rapid.SampledFrom([]rikv1alpha1.UpdateStrategyType{"RollingUpdate", "Recreate"}).Draw(t, "strategy")
		s.RestartPolicy = rapid.SampledFrom([]rikv1alpha1.RestartPolicy{"Always", "OnFailure", "Never"}).Draw(t, "restart")
		s.Paused = rapid.Bool().Draw(t, "paused")
		s.Strategy.MaxSurge, s.Strategy.MaxUnavailable = bound("surge"), bound("unavailable")
	})
}

func drawMembers(t *rapid.T) []Member {
	var out []Member
	for i := range rapid.IntRange(0, 12).Draw(t, "members") {
		out = append(out, member(fmt.Sprint("m", i),
			rapid.SampledFrom([]string{"new", "old", "older"}).Draw(t, "revision"), rapid.SampledFrom(states).Draw(t, "state")))
	}
	return out
}

// carryOut executes a plan: created members are pending, and deleted members are ending.
func carryOut(s Situation, p Plan, made *int) Situation {
	gone := map[types.UID]bool{}
	for _, d := range p.Delete {
		gone[d.Instance.UID] = true
	}
	var members []Member
	for _, m := range s.Members {
		m.Ending = m.Ending || gone[m.Instance.UID]
		members = append(members, m)
	}
	for _, c := range p.Create {
		*made++
		m := member(fmt.Sprint("c", *made), c.Revision, "pending")
		m.Instance.Spec.Replaces = string(c.Replaces)
		members = append(members, m)
	}
	s.Members = members
	return s
}

func tallied(s Situation) (live, available, gone int) {
	for _, m := range s.Members {
		switch {
		case m.Ending || m.Instance.Status.Phase.Ended() || m.Lost:
			gone++
		default:
			live++
			if ready(m) {
				available++
			}
		}
	}
	return live, available, gone
}

// TestPlanTwiceChangesNothing: after a plan was executed, there is nothing to do until another
// event.
func TestPlanTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		made := 0
		s := Situation{Spec: drawSpec(t), Revision: "new", Members: drawMembers(t), Now: noon}
		s = carryOut(s, Make(s), &made)
		if again := Make(s); !again.Empty() {
			t.Fatalf("planned again: %+v", outcomeOf(again))
		}
	})
}

// TestPlanBounds: creations never exceed replicas plus surge. Deletions never bring the
// available instances below replicas minus unavailable.
func TestPlanBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		made := 0
		s := Situation{Spec: drawSpec(t), Revision: "new", Members: drawMembers(t), Now: noon}
		s.Spec.Deploy = rikv1alpha1.DeployAutomatic
		plan := Make(s)
		_, before, _ := tallied(s)
		live, after, _ := tallied(carryOut(s, plan, &made))
		want := max(replicas(s.Spec)-sortMembers(s).filled, 0)
		surge, unavailable := bounds(&s.Spec.Strategy, want)
		if len(plan.Create) > 0 && live > want+surge {
			t.Fatalf("%d live, want at most %d+%d: %+v", live, want, surge, outcomeOf(plan))
		}
		if s.Spec.Strategy.Type == rikv1alpha1.RollingUpdate && after < min(before, want-unavailable) {
			t.Fatalf("%d available of %d, want at least %d-%d: %+v", after, before, want, unavailable, outcomeOf(plan))
		}
		seen := map[types.UID]bool{}
		for _, d := range plan.Delete {
			if seen[d.Instance.UID] {
				t.Fatalf("%s is deleted twice", d.Instance.Name)
			}
			seen[d.Instance.UID] = true
		}
	})
}

// TestManualIsLeftAlone: only lost instances are changed.
func TestManualIsLeftAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := Situation{Spec: drawSpec(t), Revision: "new", Members: drawMembers(t), Now: noon}
		s.Spec.Deploy = rikv1alpha1.DeployManual
		plan := Make(s)
		if len(plan.Create) != len(plan.Delete) {
			t.Fatalf("%+v", outcomeOf(plan))
		}
		for i, d := range plan.Delete {
			if plan.Create[i].Replaces != d.Instance.UID || plan.Create[i].Revision != d.Instance.Spec.Revision {
				t.Fatalf("%s is replaced by %+v", d.Instance.Name, plan.Create[i])
			}
		}
	})
}

// TestConverges simulates a cluster in which every created instance starts and every deleted
// one ends, in random order.
func TestConverges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		made := 0
		s := Situation{Spec: drawSpec(t), Revision: "new", Members: drawMembers(t), Now: noon}
		s.Spec.Deploy, s.Spec.Paused = rikv1alpha1.DeployAutomatic, false
		for range 200 {
			plan := Make(s)
			s = carryOut(s, plan, &made)
			happened := happen(t, &s)
			s.Now = s.Now.Add(plan.Again + time.Second)
			if plan.Empty() && plan.Again == 0 && !happened {
				break
			}
		}
		want := max(replicas(s.Spec)-sortMembers(s).filled, 0)
		fresh := 0
		for _, m := range s.Members {
			switch {
			case m.Instance.Spec.Revision != "new":
				t.Fatalf("%s of revision %s is left", m.Instance.Name, m.Instance.Spec.Revision)
			case ready(m):
				fresh++
			}
		}
		if fresh != want {
			t.Fatalf("%d run, want %d: %v", fresh, want, outcomeOf(Make(s)))
		}
	})
}

// happen performs some of the outstanding starts and ends, at least one.
func happen(t *rapid.T, s *Situation) bool {
	happened := false
	var members []Member
	for _, m := range s.Members {
		phase := m.Instance.Status.Phase
		moves := m.Ending || phase == rikv1alpha1.InstancePending || phase == rikv1alpha1.InstanceCreating
		if !moves || happened && rapid.Bool().Draw(t, "later") {
			members = append(members, m)
			continue
		}
		happened = true
		if m.Ending {
			continue
		}
		up := member(m.Instance.Name, m.Instance.Spec.Revision, "up")
		up.Instance.Spec.Replaces = m.Instance.Spec.Replaces
		up.Instance.CreationTimestamp = metav1.NewTime(s.Now)
		members = append(members, up)
	}
	s.Members = members
	return happened
}
