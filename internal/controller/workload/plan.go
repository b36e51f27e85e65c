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
	// keptFailures is how many failed instances of an Automatic workload are
	// kept for a look at what went wrong.
	keptFailures = 5
	// firstDelay before failed instances are replaced; it doubles with each wave of
	// failures, up to as many as are kept.
	firstDelay = 10 * time.Second
	// longestDelay is that after keptFailures waves.
	longestDelay = firstDelay << (keptFailures - 1)
	// steady is how long nothing must have failed, counted from the end of the last
	// pause, for the delay to begin anew.
	steady = 10 * time.Minute
)

// Member is an instance of the workload and what its node means for it.
type Member struct {
	Instance *rikv1alpha1.Instance
	// Ending: it is being deleted, though the object may not say so yet.
	Ending bool
	// Lost: it cannot stay on its node, for Reason.
	Lost   bool
	Reason string
}

// Situation is all that a plan depends on.
type Situation struct {
	Spec *rikv1alpha1.WorkloadSpec
	// Revision is the name of the present template's revision.
	Revision string
	Members  []Member
	Now      time.Time
	// Fenced, if not empty, is why no instance may run now.
	Fenced string
}

// Creation asks for a new instance.
type Creation struct {
	Revision string
	// Replaces is the UID of the lost instance that it stands in for.
	Replaces types.UID
}

// Deletion asks for an end.
type Deletion struct {
	Instance *rikv1alpha1.Instance
	Reason   string
}

// lost says whether the instance goes because it cannot stay on its node.
func (d Deletion) lost() bool {
	switch d.Reason {
	case reasonScaledDown, reasonUpdated, reasonHistory, reasonFenced:
		return false
	}
	return true
}

// Plan is what brings a workload one step closer to what is asked. It is carried
// out in the order that keeps to the bounds: first what is deleted to make room,
// then what is created, then what is lost, each after its replacement exists.
type Plan struct {
	Create []Creation
	Delete []Deletion
	// Again says when time alone changes the plan; 0 means never.
	Again time.Duration
}

// Empty says whether nothing is to be done now.
func (p *Plan) Empty() bool { return len(p.Create) == 0 && len(p.Delete) == 0 }

// Reasons of deletions.
const (
	reasonScaledDown = "ScaledDown"
	reasonUpdated    = "Updated"
	reasonHistory    = "FailureHistory"
	reasonFenced     = "Fenced"
)

// Make plans. It is a pure function: planning again after the plan was carried
// out, with nothing else changed, plans nothing.
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

// fenced stops everything that runs or could, and starts nothing. What has ended stays: it
// says what was done.
func fenced(members []Member) Plan {
	var p Plan
	for _, m := range members {
		if !m.Ending && !m.Instance.Status.Phase.Ended() {
			p.Delete = append(p.Delete, Deletion{m.Instance, reasonFenced})
		}
	}
	return p
}

// groups are the members by what they mean to the plan.
type groups struct {
	Situation
	fresh, old []Member // that run or will, by revision
	lost       []Member // that cannot stay
	oldEnding  int      // of older revisions, not gone yet
	oldEnded   []Member // of older revisions
	filled     int      // ended ones that need no other
	failed     int      // those of filled that failed
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

// sortEnded: with restart policy Never nothing is retried, whatever the exit
// code; with OnFailure only what failed is.
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

// finished is when an instance ended, to the second, as it is stored. Its node says
// so, by its own clock, which may be slow: it was not before the instance was made.
func finished(in *rikv1alpha1.Instance) time.Time {
	at := in.CreationTimestamp.Time
	if end := in.Status.FinishedAt; end != nil && end.After(at) {
		at = end.Time
	}
	return at.Truncate(time.Second)
}

// byNode says whether an instance ended through its node, which is no fault of the
// workload's: the node stopped it, or has nothing of it.
func byNode(in *rikv1alpha1.Instance) bool {
	return in.Status.Reason == instance.ReasonStoppedByNode || in.Status.Reason == instance.ReasonNotHere
}

// backOff is what the failures of a workload mean for its next instances.
type backOff struct {
	// failed is how many of those that are kept count.
	failed int
	// until is when the next is created; the zero time if nothing failed.
	until time.Time
	// waves holds the first of each wave: of the failures that came before the pause
	// after the first of them was over.
	waves []Member
}

// backOff follows from the objects, so a restart does not shorten it.
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

// history lists what is ended and beyond what is kept, the oldest first. The first of
// each wave stays before others: the next delay depends on them.
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

// manual touches instances only to replace those that are lost, each by one of
// its own revision.
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

// hold keeps the number while a rollout is paused: new ones are of the revision
// that most of the present ones have.
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

// recreate starts nothing new before everything old is gone from its node.
func (g *groups) recreate(p *Plan, want int) {
	g.remove(p, surplus(g.old), len(g.old), reasonUpdated)
	if len(g.old)+g.oldEnding == 0 {
		g.add(p, want-len(g.fresh))
	}
	g.trim(p, g.fresh, len(g.fresh)-want, reasonScaledDown)
}

// roll replaces a few at a time: never more than want+surge exist, and what is
// available is never taken below want-unavailable.
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

	// After a scale-down in the middle of a rollout there may be too many still:
	// those that serve nobody go.
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

// remove takes the first n.
func (g *groups) remove(p *Plan, from []Member, n int, reason string) {
	for i := range min(max(n, 0), len(from)) {
		p.Delete = append(p.Delete, Deletion{from[i].Instance, reason})
	}
}

// trim takes the n that can be spared most. Ordering them costs more than all else
// in a pass over thousands, so it waits until one has to go.
func (g *groups) trim(p *Plan, from []Member, n int, reason string) {
	if n > 0 {
		g.remove(p, surplus(from), n, reason)
	}
}

// delay holds creations back after failures.
func (g *groups) delay(p *Plan) {
	if len(g.spent) == 0 || len(p.Create) == 0 {
		return
	}
	// A wait that is longer than any is of a clock that was ahead, and is not believed.
	if left := g.backOff().until.Sub(g.Now); left > 0 && left <= longestDelay {
		p.Create, p.Again = nil, left
	}
}

// pair notes which lost instance a new one of the same revision stands in for.
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

// bounds are how many more and how many fewer than want a rollout may have. Both
// zero would be a standstill.
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

// surplus orders members by who goes first: those that no node has, then those
// that are not ready, then those that share their node with most others, then
// the youngest.
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
