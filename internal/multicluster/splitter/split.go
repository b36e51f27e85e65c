package splitter

import (
	"cmp"
	"math"
	"slices"
	"time"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// Split returns the next step toward the division that a state asks for. It is a pure function of
// its argument. The order of the clusters and leaves does not matter.
//
// The caller must write Progress first. After that, it may write any of the changes, in any
// order. The changes never raise the number of replicas that can run above the whole plus the
// allowed surge. Lost clusters of a root without a fence are an exception. When the caller has
// written all changes, and nothing else has happened, the next Split returns no changes.
func Split(state State) Result {
	st := &state
	st.noteRefusals()
	sites := st.sites()
	whole := st.whole()
	for _, s := range sites {
		if s.part = st.part(s.leaf); s.refused && s.leaf.Running > 0 {
			s.part = min(s.part, int64(s.leaf.Running))
		}
	}
	st.weigh(sites)
	st.checkRefusals(sites)
	st.keepStranded(sites)
	if st.Policy.divide == workloadv1alpha1.DivideEverywhere {
		whole = everywhere(sites)
	} else {
		st.divide(whole, sites)
	}
	st.measure(sites)
	walk := st.walk(whole, sites)
	result := Result{
		Progress: st.progress(walk),
		Unplaced: int32(whole - walk.shares()),
		Stranded: int32(walk.sum((*site).strandedParts)),
		Refused:  refusedIn(sites),
		Changes:  st.changes(sites, walk),
	}
	st.forgetRefusals(result.Changes, &result.Progress)
	result.Next = st.next(sites, walk, result.Progress)
	result.Explanation = st.explain(whole, sites, walk, result)
	return result
}

// whole returns the number that is divided.
func (st *State) whole() int64 {
	if st.Policy.divide == workloadv1alpha1.DivideReplicas {
		return int64(max(st.Root.Replicas, 0))
	}
	return 1
}

// part returns the part in the spec of a leaf.
func (st *State) part(l *Leaf) int64 {
	switch {
	case l == nil || l.Deleting:
		return 0
	case st.Policy.divide == workloadv1alpha1.DivideReplicas:
		return int64(max(l.Replicas, 0))
	}
	return 1
}

// sites returns the clusters with their leaves and their standings, sorted by name.
func (st *State) sites() []*site {
	leaves := make(map[string]*Leaf, len(st.Leaves))
	bound, finished := false, st.Root.Finished
	for i := range st.Leaves {
		leaves[st.Leaves[i].Cluster] = &st.Leaves[i]
		bound = bound || st.Leaves[i].Bound
		finished = finished || st.Leaves[i].Finished
	}
	all := make([]site, 0, len(st.Clusters)+len(st.Leaves))
	for i := range st.Clusters {
		name := st.Clusters[i].Name
		all = append(all, site{name: name, cluster: &st.Clusters[i], leaf: leaves[name]})
		delete(leaves, name)
	}
	for name, leaf := range leaves {
		all = append(all, site{name: name, leaf: leaf})
	}
	slices.SortFunc(all, func(a, b site) int { return cmp.Compare(a.name, b.name) })
	// An object that every cluster has must finish in each of them.
	finished = finished && st.Policy.divide == workloadv1alpha1.DivideWhole
	sites := make([]*site, len(all))
	for i := range all {
		sites[i] = &all[i]
		sites[i].check(st)
		sites[i].hold(bound)
		sites[i].holdFinished(finished)
	}
	return sites
}

// everywhere gives one to each cluster that may have it, and returns the number of these.
func everywhere(sites []*site) int64 {
	var whole int64
	for _, s := range sites {
		switch {
		case s.standing == Open && s.weight > 0:
			s.share = 1
		case s.standing == Holding:
			s.share = s.part
		}
		whole += s.share
	}
	return whole
}

// measure sets how many replicas can run in each cluster, and how many of them are ready.
func (st *State) measure(sites []*site) {
	for _, s := range sites {
		if s.isAutoscaled() {
			// The site counts with its share. The replicas that an autoscaler sets do not affect
			// the other clusters.
			s.part, s.most, s.ready = s.share, s.share, s.share
			continue
		}
		if s.leaf == nil {
			continue
		}
		if s.lost || s.refused && s.leaf.Never {
			s.part = 0
		}
		if s.counts(st) && !s.leaf.Never {
			s.most = s.leaf.most()
		}
		if s.cluster != nil && s.cluster.Ready && !s.leaf.Deleting {
			s.ready = int64(s.leaf.Ready)
		}
	}
}

// walk moves the parts as far toward the shares as is safe.
func (st *State) walk(whole int64, sites []*site) *stepper {
	w := &stepper{sites: sites, surge: st.Policy.surgeOf(whole), surged: int64(max(st.Progress.Surged, 0)), moves: noLimit}
	w.bound = whole + w.surge
	if st.Policy.moves > 0 {
		w.moves = max(0, st.Policy.moves-int64(max(st.moved().Moves, 0)))
	}
	if st.Policy.divide != workloadv1alpha1.DivideEverywhere {
		w.step()
		return w
	}
	for _, s := range sites {
		if s.part > s.share || s.raisable() {
			s.part = s.share
		}
	}
	w.surged = 0
	return w
}

// moved returns the progress of the current interval of moves.
func (st *State) moved() Progress {
	p := st.Progress
	// If Since is more than an interval in the future, the clock that wrote it was wrong. A small
	// difference is normal between the clocks of two servers.
	if p.Since.After(st.Now.Add(st.Policy.interval)) || !st.Now.Before(p.Since.Add(st.Policy.interval)) {
		p.Since, p.Moves = time.Time{}, 0
	}
	return p
}

// progress returns what the next decision must know of this one.
func (st *State) progress(w *stepper) Progress {
	p := st.Progress
	if w.made > 0 && st.Policy.moves > 0 {
		if p = st.moved(); p.Moves == 0 {
			p.Since = st.Now
		}
		p.Moves += int32(w.made)
	}
	p.Surged = int32(w.surged)
	return p
}

// changes returns the writes that set the leaves to the parts that walk has chosen.
func (st *State) changes(sites []*site, w *stepper) []Change {
	var changes []Change
	for _, s := range sites {
		if c := st.change(s, w); c.Action != "" {
			c.Cluster = s.name
			changes = append(changes, c)
		}
	}
	return changes
}

func (st *State) change(s *site, w *stepper) Change {
	l := s.leaf
	to := int32(min(s.part, math.MaxInt32))
	switch {
	case l == nil && to > 0:
		return Change{Action: Create, To: to, AtMost: to}
	case l == nil, l.Deleting:
		return Change{}
	case s.apart:
		return st.removal(s)
	case l.Autoscaled:
		if s.standing == Out && (s.lost || w.isDone()) {
			return Change{Action: Delete, From: l.Replicas}
		}
		return Change{}
	case st.Policy.divide != workloadv1alpha1.DivideReplicas:
		if to == 0 {
			return Change{Action: Delete, From: 1}
		}
		return Change{}
	case to != l.Replicas:
		return Change{Action: Scale, From: l.Replicas, To: to, AtMost: int32(max(l.most(), s.part)), RefusedAt: s.refusedAt}
	case s.standing == Out && l.gone() && !s.refused: // the leaf remembers the refusal
		return Change{Action: Delete}
	}
	return Change{}
}

// removal returns the change of the leaf of a removed cluster. It changes nothing while the
// cluster is being removed, and while replicas of a fenced root may run there. It also leaves a
// leaf that records where data is or where work has finished.
func (st *State) removal(s *site) Change {
	switch {
	case s.cluster != nil || s.isBound() || s.isFinished():
		return Change{}
	case !s.counts(st):
		return Change{Action: Delete, From: s.leaf.Replicas}
	case s.leaf.LostAt.IsZero(), s.leaf.LostAt.After(st.Now): // or the clock was ahead
		return Change{Action: Note, From: s.leaf.Replicas, To: s.leaf.Replicas, AtMost: s.leaf.AtMost, LostAt: st.Now}
	}
	return Change{}
}

// isDone reports whether all parts equal their shares and are ready.
func (s *stepper) isDone() bool {
	return s.sum(func(x *site) int64 { return x.share - x.readyParts() }) == 0 && s.parts() == s.shares()
}

// next returns the time at which something changes without an event.
func (st *State) next(sites []*site, w *stepper, p Progress) time.Time {
	var next time.Time
	consider := func(at time.Time) {
		if at.After(st.Now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for _, s := range sites {
		consider(s.again)
	}
	if w.moves == 0 && w.sum(deficit) > 0 {
		consider(p.Since.Add(st.Policy.interval))
	}
	return next
}
