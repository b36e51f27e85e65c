package splitter

import (
	"slices"
	"time"
)

// maxRounds of a rehearsal are far more than moves in steps of a few replicas take.
const maxRounds = 10_000

// Rehearsal is how a state comes to rest if nothing else happens to it, and every cluster
// that hears what is wanted does it.
type Rehearsal struct {
	// First is the decision in the state as it is, and Last the one at rest.
	First, Last Result
	// Steps are the decisions that change something, in their order.
	Steps []Step
	// Final is the state at rest. Its Now is when the last step has been made, if only the
	// waiting that the policy asks for takes time.
	Final State
	// AtRest is whether the end was reached: moves in very many steps are not walked to it.
	AtRest bool
}

// Step is one decision of a [Rehearsal].
type Step struct {
	At      time.Time
	Changes []Change
}

// Rehearse walks from a state to rest by the decisions of [Split]. Clusters that are ready
// run what they are told and confirm what they have stopped, at once; the others stay as
// they are, and say nothing. Where nothing happens before a point in time, as the end of a
// grace period, the clock is set to it. The state is not changed.
func Rehearse(state State) Rehearsal {
	state.Leaves = slices.Clone(state.Leaves)
	r := Rehearsal{Final: state}
	st := &r.Final
	at := st.Now
	for round := range maxRounds {
		r.Last = Split(*st)
		if round == 0 {
			r.First = r.Last
		}
		if len(r.Last.Changes) > 0 {
			at = st.Now
			r.Steps = append(r.Steps, Step{At: at, Changes: r.Last.Changes})
		}
		wrote := r.Last.Progress != st.Progress || len(r.Last.Changes) > 0
		st.write(r.Last)
		switch obeyed := st.obey(); {
		case wrote, obeyed:
		case r.Last.Next.IsZero():
			st.Now, r.AtRest = at, true
			return r
		default:
			st.Now = r.Last.Next
		}
	}
	return r
}

// write makes the changes of a decision.
func (st *State) write(r Result) {
	st.Progress = r.Progress
	for _, c := range r.Changes {
		i := slices.IndexFunc(st.Leaves, func(l Leaf) bool { return l.Cluster == c.Cluster })
		switch c.Action {
		case Create:
			st.Leaves = append(st.Leaves, Leaf{Cluster: c.Cluster, Replicas: c.To, AtMost: c.AtMost})
		case Scale:
			l := &st.Leaves[i]
			l.Replicas, l.AtMost, l.Settled = c.To, c.AtMost, false
		case Delete:
			st.Leaves[i].Deleting = true
		case Note:
			st.Leaves[i].LostAt = c.LostAt
		}
	}
}

// obey lets the clusters do what they are told, and says whether anything has changed by
// it. The leaf of a cluster that was removed is held by nobody when it is deleted.
func (st *State) obey() bool {
	before := slices.Clone(st.Leaves)
	st.Leaves = slices.DeleteFunc(st.Leaves, func(l Leaf) bool {
		c := st.clusterOf(l.Cluster)
		return l.Deleting && (c == nil || c.hears())
	})
	for i := range st.Leaves {
		l := &st.Leaves[i]
		if c := st.clusterOf(l.Cluster); c != nil && c.hears() {
			l.Running, l.Ready, l.Settled = l.Replicas, l.Replicas, true
		}
	}
	return !slices.Equal(before, st.Leaves)
}

func (st *State) clusterOf(name string) *Cluster {
	if i := slices.IndexFunc(st.Clusters, func(c Cluster) bool { return c.Name == name }); i >= 0 {
		return &st.Clusters[i]
	}
	return nil
}

// hears says whether a cluster learns what is wanted of it, and can answer.
func (c *Cluster) hears() bool { return c.Ready && c.Serves && c.Missing.IsZero() && !c.Removing }
