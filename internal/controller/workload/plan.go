package workload

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/instance"
)

const (
	// keptFailures is the number of failed instances of an Automatic workload that are kept, so
	// that users can inspect them.
	keptFailures = 5
	// firstDelay is the delay before failed instances are replaced. It doubles with each wave of
	// failures, for up to keptFailures waves.
	firstDelay = 10 * time.Second
	// longestDelay is the delay after keptFailures waves.
	longestDelay = firstDelay << (keptFailures - 1)
	// steady is the time without failures, counted from the end of the last delay, after which
	// the delay starts again at firstDelay.
	steady = 10 * time.Minute
)

// Member is an instance of the workload with the effect of its node on it.
type Member struct {
	Instance *rikv1alpha1.Instance
	// Ending means that the instance is being deleted, even if the object does not show it yet.
	Ending bool
	// Lost means that the instance cannot stay on its node. Reason says why.
	Lost   bool
	Reason string
}

// Situation is the input of a plan.
type Situation struct {
	Spec *rikv1alpha1.WorkloadSpec
	// Revision is the name of the current template's revision.
	Revision string
	Members  []Member
	Now      time.Time
	// Fenced says why no instance may run now. It is empty if they may.
	Fenced string
}

// Creation requests a new instance.
type Creation struct {
	Revision string
	// Replaces is the UID of the lost instance that the new one replaces.
	Replaces types.UID
}

// Deletion requests the deletion of an instance.
type Deletion struct {
	Instance *rikv1alpha1.Instance
	Reason   string
}

// lost reports whether the instance is deleted because it cannot stay on its node.
func (d Deletion) lost() bool {
	switch d.Reason {
	case reasonScaledDown, reasonUpdated, reasonHistory, reasonFenced:
		return false
	}
	return true
}

// Plan brings a workload one step closer to its spec. The order of execution respects the
// rollout bounds: first deletions that make room, then creations, then deletions of lost
// instances, each after its replacement exists.
type Plan struct {
	Create []Creation
	Delete []Deletion
	// Again is the time after which the plan changes without an event. Zero means never.
	Again time.Duration
}

// Empty reports whether there is nothing to do now.
func (p *Plan) Empty() bool { return len(p.Create) == 0 && len(p.Delete) == 0 }

// Reasons of deletions.
const (
	reasonScaledDown = "ScaledDown"
	reasonUpdated    = "Updated"
	reasonHistory    = "FailureHistory"
	reasonFenced     = "Fenced"
)

// Make returns a plan. It is a pure function. After a plan was executed and nothing else
// changed, the next plan is empty.
func Make(s Situation) Plan {
	if s.Fenced != "" {
		return fenced(s.Members)
	}
	g := sortMembers(s)
	if s.Spec.Deploy != rikv1alpha1.DeployAutomatic {
		return g.manual()
	}
	return g.automatic()
}

// fenced stops all instances that run or could run, and starts none. Ended instances stay,
// because they show their results.
func fenced(members []Member) Plan {
	var p Plan
	for _, m := range members {
		if !m.Ending && !m.Instance.Status.Phase.Ended() {
			p.Delete = append(p.Delete, Deletion{m.Instance, reasonFenced})
		}
	}
	return p
}

// groups are the members, grouped by their role in the plan.
type groups struct {
	Situation
	fresh, old []Member // that run or will run, by revision
	lost       []Member // that cannot stay on their node
	oldEnding  int      // number of older revisions, still ending
	oldEnded   []Member // of older revisions
	filled     int      // number of ended ones that need no replacement
	failed     int      // number of those in filled that failed
	spent      []Member // failed ones, to be replaced; the oldest first
	replaced   map[types.UID]bool
}

func sortMembers(s Situation) *groups {
	g := &groups{Situation: s, replaced: map[types.UID]bool{}}
	for _, m := range s.Members {
		if r := m.Instance.Spec.Replaces; r != "" {
			g.replaced[types.UID(r)] = true
		}
		current := m.Instance.Spec.Revision == s.Revision
		switch {
		case m.Ending:
			if !current && !m.Lost {
				g.oldEnding++
			}
		case m.Instance.Status.Phase.Ended():
			g.sortEnded(m, current)
		case m.Lost:
			g.lost = append(g.lost, m)
		case current:
			g.fresh = append(g.fresh, m)
		default:
			g.old = append(g.old, m)
		}
	}
	slices.SortFunc(g.spent, func(a, b Member) int {
		return cmp.Or(finished(a.Instance).Compare(finished(b.Instance)), cmp.Compare(a.Instance.UID, b.Instance.UID))
	})
	byName := func(a, b Member) int { return cmp.Compare(a.Instance.Name, b.Instance.Name) }
	slices.SortFunc(g.lost, byName)
	slices.SortFunc(g.oldEnded, byName)
	return g
}

// sortEnded sorts an ended member. With restart policy Never no instance is retried, whatever
// its exit code. With OnFailure only failed instances are retried.
func (g *groups) sortEnded(m Member, current bool) {
	policy := g.Spec.RestartPolicy
	completed := m.Instance.Status.Phase == rikv1alpha1.InstanceCompleted
	switch {
	case !current:
		g.oldEnded = append(g.oldEnded, m)
	case policy == rikv1alpha1.RestartNever, completed && policy == rikv1alpha1.RestartOnFailure:
		g.filled++
		if !completed {
			g.failed++
		}
	default:
		g.spent = append(g.spent, m)
	}
}

// finished returns when an instance ended, to the second, as it is stored. The time comes from
// the node's clock, which may be slow. It is therefore never earlier than the creation of the
// instance.
func finished(in *rikv1alpha1.Instance) time.Time {
	at := in.CreationTimestamp.Time
	if end := in.Status.FinishedAt; end != nil && end.After(at) {
		at = end.Time
	}
	return at.Truncate(time.Second)
}

// byNode reports whether the node caused the end of an instance, and not the workload: the node
// stopped the instance, or has no parts of it.
func byNode(in *rikv1alpha1.Instance) bool {
	return in.Status.Reason == instance.ReasonStoppedByNode || in.Status.Reason == instance.ReasonNotHere
}

// backOff is the effect of a workload's failures on its next instances.
type backOff struct {
	// failed is the number of kept failures that count.
	failed int
	// until is when the next instance may be created. It is zero if there is no failure.
	until time.Time
	// waves holds the first failure of each wave. A wave contains the failures before the end of
	// the delay that follows its first failure.
	waves []Member
}

// backOff is computed from the objects, so a restart does not shorten it.
func (g *groups) backOff() backOff {
	var b backOff
	for _, m := range g.spent {
		if byNode(m.Instance) {
			continue
		}
		at := finished(m.Instance)
		if len(b.waves) > 0 && at.After(b.until.Add(steady)) {
			b = backOff{}
		}
		b.failed++
		if len(b.waves) > 0 && at.Before(b.until) {
			continue
		}
		b.waves = append(b.waves, m)
		b.until = at.Add(firstDelay << (min(len(b.waves), keptFailures) - 1))
	}
	return b
}

// history returns the ended instances beyond those that are kept, the oldest first. The first
// failure of each wave is kept in preference to others, because the next delay depends on it.
func (g *groups) history() []Member {
	waves := g.backOff().waves
	kept := map[types.UID]bool{}
	for _, m := range waves[max(len(waves)-keptFailures, 0):] {
		kept[m.Instance.UID] = true
	}
	for i := len(g.spent) - 1; i >= 0 && len(kept) < keptFailures; i-- {
		kept[g.spent[i].Instance.UID] = true
	}
	return slices.DeleteFunc(slices.Clone(g.spent), func(m Member) bool { return kept[m.Instance.UID] })
}

// manual changes instances only to replace lost ones, each by a new one of the same revision.
func (g *groups) manual() Plan {
	var p Plan
	for _, m := range g.lost {
		if !g.replaced[m.Instance.UID] {
			p.Create = append(p.Create, Creation{Revision: m.Instance.Spec.Revision, Replaces: m.Instance.UID})
		}
		p.Delete = append(p.Delete, Deletion{m.Instance, m.Reason})
	}
	return p
}

func (g *groups) automatic() Plan {
	var p Plan
	for _, m := range g.lost {
		p.Delete = append(p.Delete, Deletion{m.Instance, m.Reason})
	}
	for _, m := range g.history() {
		p.Delete = append(p.Delete, Deletion{m.Instance, reasonHistory})
	}
	want := max(replicas(g.Spec)-g.filled, 0)
	switch {
	case g.Spec.Paused:
		g.hold(&p, want)
	case g.Spec.Strategy.Type == rikv1alpha1.Recreate:
		g.recreate(&p, want)
	default:
		g.roll(&p, want)
	}
	if !g.Spec.Paused {
		for _, m := range g.oldEnded {
			p.Delete = append(p.Delete, Deletion{m.Instance, reasonUpdated})
		}
	}
	g.delay(&p)
	g.pair(&p)
	return p
}

func replicas(s *rikv1alpha1.WorkloadSpec) int {
	if s.Replicas == nil {
		return 1
	}
	return max(int(*s.Replicas), 0)
}

// hold keeps the number of instances while a rollout is paused. New instances have the revision
// that most current instances have.
func (g *groups) hold(p *Plan, want int) {
	live := slices.Concat(g.old, g.fresh)
	revision := g.Revision
	if len(g.old) > len(g.fresh) {
		revision = mostCommon(g.old)
	}
	for range want - len(live) {
		p.Create = append(p.Create, Creation{Revision: revision})
	}
	g.trim(p, live, len(live)-want, reasonScaledDown)
}

func mostCommon(members []Member) string {
	count := map[string]int{}
	best := ""
	for _, m := range members {
		r := m.Instance.Spec.Revision
		count[r]++
		if count[r] > count[best] || count[r] == count[best] && r < best {
			best = r
		}
	}
	return best
}

// recreate starts new instances only when all old ones are gone from their nodes.
func (g *groups) recreate(p *Plan, want int) {
	g.remove(p, surplus(g.old), len(g.old), reasonUpdated)
	if len(g.old)+g.oldEnding == 0 {
		g.add(p, want-len(g.fresh))
	}
	g.trim(p, g.fresh, len(g.fresh)-want, reasonScaledDown)
}

// roll replaces a few instances at a time. At most want+surge instances exist, and the
// available ones never fall below want-unavailable.
func (g *groups) roll(p *Plan, want int) {
	surge, unavailable := bounds(&g.Spec.Strategy, want)
	g.trim(p, g.fresh, len(g.fresh)-want, reasonScaledDown)
	if len(g.old) == 0 {
		g.add(p, want-len(g.fresh))
		return
	}
	least := max(want-unavailable, 0)
	freshKept := surplus(g.fresh)[max(len(g.fresh)-want, 0):]
	budget := len(freshKept) + len(g.old) - least - count(freshKept, unready)
	old := surplus(g.old)
	for len(old) > 0 && unready(old[0]) && budget > 0 {
		g.remove(p, old, 1, reasonUpdated)
		old, budget = old[1:], budget-1
	}
	available := count(freshKept, ready) + count(old, ready)
	healthy := slices.DeleteFunc(slices.Clone(old), unready)
	gone := min(available-least, len(healthy))
	g.remove(p, healthy, gone, reasonUpdated)

	// After a scale-down during a rollout there may still be too many instances. Those that are
	// not ready are deleted.
	left := len(freshKept) + len(old) - max(gone, 0)
	idle := slices.DeleteFunc(slices.Concat(old, freshKept), ready)
	g.remove(p, idle, left-(want+surge), reasonScaledDown)
	g.add(p, min(want-len(g.fresh), want+surge-left))
}

func (g *groups) add(p *Plan, n int) {
	for range n {
		p.Create = append(p.Create, Creation{Revision: g.Revision})
	}
}

// remove deletes the first n.
func (g *groups) remove(p *Plan, from []Member, n int, reason string) {
	for i := range min(max(n, 0), len(from)) {
		p.Delete = append(p.Delete, Deletion{from[i].Instance, reason})
	}
}

// trim deletes the n most dispensable members. Sorting them is the most expensive part of a
// pass over thousands, so it is done only if one must be deleted.
func (g *groups) trim(p *Plan, from []Member, n int, reason string) {
	if n > 0 {
		g.remove(p, surplus(from), n, reason)
	}
}

// delay postpones creations after failures.
func (g *groups) delay(p *Plan) {
	if len(g.spent) == 0 || len(p.Create) == 0 {
		return
	}
	// A delay longer than longestDelay comes from a clock that was ahead, and is ignored.
	if left := g.backOff().until.Sub(g.Now); left > 0 && left <= longestDelay {
		p.Create, p.Again = nil, left
	}
}

// pair assigns new instances to lost ones of the same revision.
func (g *groups) pair(p *Plan) {
	lost := slices.DeleteFunc(slices.Clone(g.lost), func(m Member) bool { return g.replaced[m.Instance.UID] })
	for i := range p.Create {
		at := slices.IndexFunc(lost, func(m Member) bool { return m.Instance.Spec.Revision == p.Create[i].Revision })
		if at >= 0 {
			p.Create[i].Replaces = lost[at].Instance.UID
			lost = slices.Delete(lost, at, at+1)
		}
	}
}

// bounds returns how many instances above and below want a rollout may have. If both were zero,
// the rollout could not proceed.
func bounds(s *rikv1alpha1.UpdateStrategy, want int) (surge, unavailable int) {
	quarter := intstr.FromString("25%")
	scale := func(v *intstr.IntOrString, up bool) int {
		n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, quarter), want, up)
		if err != nil {
			return 0
		}
		return max(n, 0)
	}
	surge, unavailable = scale(s.MaxSurge, true), min(scale(s.MaxUnavailable, false), want)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func ready(m Member) bool {
	return m.Instance.Status.Phase == rikv1alpha1.InstanceRunning && m.Instance.Status.Ready
}

func unready(m Member) bool { return !ready(m) }

func count(members []Member, is func(Member) bool) int {
	n := 0
	for _, m := range members {
		if is(m) {
			n++
		}
	}
	return n
}

// surplus sorts members by which are deleted first: those without a node, then those that are
// not ready, then those that share their node with most others, then the youngest.
func surplus(members []Member) []Member {
	crowd := map[string]int{}
	for _, m := range members {
		crowd[m.Instance.Spec.NodeName]++
	}
	rank := func(m Member) int {
		switch {
		case m.Instance.Spec.NodeName == "":
			return 0
		case unready(m):
			return 1
		default:
			return 2
		}
	}
	return slices.SortedFunc(slices.Values(members), func(a, b Member) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			cmp.Compare(crowd[b.Instance.Spec.NodeName], crowd[a.Instance.Spec.NodeName]),
			b.Instance.CreationTimestamp.Compare(a.Instance.CreationTimestamp.Time),
			cmp.Compare(a.Instance.Name, b.Instance.Name),
		)
	})
}
