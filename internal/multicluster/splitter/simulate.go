package splitter

import (
	"slices"
	"time"
)

// maxRounds limits the rounds of a simulation. It is far more than moves in steps of a few
// replicas need.
const maxRounds = 10_000

// Simulation is the path of a state to rest. It assumes that nothing else happens, and that every
// reachable cluster does what is wanted.
type Simulation struct {
	// First is the decision in the given state, and Last is the decision at rest.
	First, Last Result
	// Steps are the decisions that change something, in order.
	Steps []Step
	// Final is the state at rest. Its Now is the time of the last step, on the assumption that
	// only the waiting times of the policy take time.
	Final State
	// AtRest is true if the simulation reached the end. It stops early if moves take too many
	// steps.
	AtRest bool
}

// Step is one decision of a [Simulation].
type Step struct {
	At      time.Time
	Changes []Change
}

// Simulate applies the decisions of [Split] to a state until it is at rest. Clusters that are
// ready run what is wanted, and confirm at once what they have stopped. Other clusters stay as
// they are and report nothing. When only the time can change something, such as the end of a
// grace period, Simulate advances the clock to that time. It does not change its argument.
func Simulate(state State) Simulation {
	state.Leaves = slices.Clone(state.Leaves)
	r := Simulation{Final: state}
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
		switch changed := st.runClusters(); {
		case wrote, changed:
		case r.Last.Next.IsZero():
			st.Now, r.AtRest = at, true
			return r
		default:
			st.Now = r.Last.Next
		}
	}
	return r
}

// write applies the changes of a decision to the state.
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

// runClusters lets the clusters do what is wanted, and reports whether that changed anything. The leaf
// of a removed cluster has no finalizer, so it disappears when it is deleted.
func (st *State) runClusters() bool {
	before := slices.Clone(st.Leaves)
	st.Leaves = slices.DeleteFunc(st.Leaves, func(l Leaf) bool {
		c := st.clusterOf(l.Cluster)
		return l.Deleting && (c == nil || c.canSync())
	})
	for i := range st.Leaves {
		l := &st.Leaves[i]
		if c := st.clusterOf(l.Cluster); c != nil && c.canSync() {
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

// canSync reports whether a cluster receives what is wanted of it and can answer.
func (c *Cluster) canSync() bool { return c.Ready && c.Serves && c.Missing.IsZero() && !c.Removing }
