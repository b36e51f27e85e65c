package splitter

import (
	"slices"
	"time"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// site is a cluster with the root's leaf, and what is found out about the two.
type site struct {
	name    string
	cluster *Cluster // nil: it was removed
	leaf    *Leaf    // nil: there is none

	standing Standing
	// lost: it is out and cannot be asked. apart: the leaf is not to be written. silent: it
	// is out for nothing but that. stranded: it keeps what nobody else takes.
	lost, apart, silent, stranded bool
	// fence is when what runs in a lost cluster must have stopped; zero: not known.
	fence time.Time
	// refused: the cluster has lately refused the leaf. refusedAt is to be noted on it.
	refused bool
	// kept: the cluster refuses the root, as do all others, and so it stays.
	kept      bool
	refusedAt time.Time
	// again is when the standing changes by itself; zero: never.
	again   time.Time
	reasons []Reason

	weight uint64
	group  string
	// part it has and share it is to have.
	part, share int64
	// fair is what its share would be if it were open, rounded down.
	fair int64
	// most that can run, and ready ones; both of what counts toward the bound.
	most, ready int64
}

func (s *site) because(standing Standing, r Reason) {
	if standing == Out || s.standing == Open {
		s.standing = standing
	}
	s.reasons = append(s.reasons, r)
}

func (s *site) lookAgain(at, now time.Time) {
	if at.After(now) && (s.again.IsZero() || at.Before(s.again)) {
		s.again = at
	}
}

// isBound says whether the leaf has data in the cluster.
func (s *site) isBound() bool { return s.leaf != nil && s.leaf.Bound }

// isFinished says whether the leaf's work is done.
func (s *site) isFinished() bool { return s.leaf != nil && s.leaf.Finished }

func (s *site) isAutoscaled() bool { return s.leaf != nil && s.leaf.Autoscaled }

func (s *site) isDeleting() bool { return s.leaf != nil && s.leaf.Deleting }

// raisable says whether the site's part can grow.
func (s *site) raisable() bool {
	return s.standing == Open && !s.isDeleting() && !s.isAutoscaled()
}

// check says what a cluster may have of the root.
func (s *site) check(st *State) {
	s.standing = Open
	switch c := s.cluster; {
	case c == nil:
		s.because(Out, Reason{Code: ClusterGone})
		s.lost, s.apart = true, true
		if !s.leaf.LostAt.IsZero() && !s.leaf.LostAt.After(st.Now) {
			s.fence = s.leaf.LostAt.Add(st.fenceTime())
		}
	case c.Removing:
		// What is in a cluster stays as it is when the cluster is let go of.
		s.because(Out, Reason{Code: ClusterLeaving})
		s.lost, s.apart = true, true
	default:
		if st.Follows && !slices.Contains(st.Among, c.Name) {
			s.because(Out, Reason{Code: FollowsElsewhere})
		}
		s.checkWishes(&st.Policy)
		s.checkHealth(st)
		s.checkRefusal(st)
		if !c.Silent.IsZero() {
			s.fence = c.Silent.Add(st.fenceTime())
		}
	}
	if s.lost {
		s.lookAgain(s.fence, st.Now)
	}
}

// checkWishes looks at what the policy asks of a cluster.
func (s *site) checkWishes(p *Policy) {
	c := s.cluster
	known := named{Set: c.Labels, name: c.Name}
	if !p.clusters.Matches(known) || p.notClusters.Matches(known) {
		s.because(Out, Reason{Code: NotSelected})
	}
	for _, taint := range c.Taints {
		if p.tolerates(taint) {
			continue
		}
		effect := Holding
		if taint.Effect == workloadv1alpha1.TaintNoExecute {
			effect = Out
		}
		name := taint.Key
		if taint.Value != "" {
			name += "=" + taint.Value
		}
		s.because(effect, Reason{Code: NotTolerated, Name: name + ":" + string(taint.Effect)})
	}
	if p.fenced() && !c.Fences {
		s.because(Out, Reason{Code: CannotFence})
	}
}

// checkHealth looks at how a cluster is, and what its owner wants of it.
func (s *site) checkHealth(st *State) {
	c := s.cluster
	switch {
	case c.EvictAfter.IsZero():
	case c.EvictAfter.After(st.Now):
		s.because(s.standing, Reason{Code: EvictedLater, At: c.EvictAfter})
		s.lookAgain(c.EvictAfter, st.Now)
	default:
		s.because(Out, Reason{Code: Evicted, At: c.EvictAfter})
	}
	if until := c.Since.Add(st.Policy.grace); !c.Ready {
		if s.standing != Out && until.After(st.Now) {
			s.because(Holding, Reason{Code: NotReady, At: until})
			s.lookAgain(until, st.Now)
		} else {
			s.silent = s.standing != Out
			s.because(Out, Reason{Code: NotReadyTooLong, At: c.Since})
		}
		s.lost = s.standing == Out
	}
	if !c.Missing.IsZero() {
		s.checkMissing(st)
	} else if !c.Serves {
		s.because(Holding, Reason{Code: TypeNotServed})
	}
	if c.SameAs != "" {
		s.because(Holding, Reason{Code: SameCluster, Name: c.SameAs})
	}
	if c.Unschedulable {
		s.because(Holding, Reason{Code: Unschedulable})
	}
}

// checkMissing is for a cluster that has ceased to serve the type. It is to this root what a
// cluster that is not ready is to all: what it had is given up after the grace period.
func (s *site) checkMissing(st *State) {
	until := s.cluster.Missing.Add(st.Policy.grace)
	if until.After(st.Now) {
		s.because(Holding, Reason{Code: TypeGone, At: until})
		s.lookAgain(until, st.Now)
		return
	}
	s.because(Out, Reason{Code: TypeGoneTooLong, At: s.cluster.Missing})
	s.lost = true
}

// refusedRetry is after which time a cluster that has refused a leaf gets its share again.
const refusedRetry = 10 * time.Minute

// checkRefusal gives the share of a cluster that refuses its leaf to others. What runs there
// of an earlier leaf stays.
func (s *site) checkRefusal(st *State) {
	l := s.leaf
	if l == nil || l.Deleting || l.Autoscaled || st.Policy.divide != workloadv1alpha1.DivideReplicas {
		return
	}
	at := l.RefusedAt
	if at.After(st.Now) { // of a clock that was ahead: the share is tried again
		at = time.Time{}
	}
	if isOld := !at.Add(refusedRetry).After(st.Now); isOld && l.Refused && l.Replicas > 0 {
		at, s.refusedAt = st.Now, st.Now
	}
	until := at.Add(refusedRetry)
	if s.refused = !at.IsZero() && until.After(st.Now); !s.refused {
		return
	}
	standing := Out
	if l.Running > 0 {
		standing = Holding
	}
	s.because(standing, Reason{Code: Refused, At: until})
	s.lookAgain(until, st.Now)
}

// hold keeps a root that has data where the data is. Data that left with its cluster is
// nowhere: such a root waits for somebody to decide.
func (s *site) hold(bound bool) {
	switch {
	case !bound:
	case s.isBound() && s.apart:
		s.reasons = append(s.reasons, Reason{Code: DataLeft})
	case s.isBound() && s.standing == Out:
		s.standing, s.lost = Holding, false
		s.reasons = append(s.reasons, Reason{Code: DataHere})
	case !s.isBound() && s.standing == Open:
		s.because(Holding, Reason{Code: DataElsewhere})
	}
}

// holdFinished keeps what has finished where it is, and lets no other cluster run it again.
func (s *site) holdFinished(finished bool) {
	switch {
	case s.isFinished() && !s.apart && s.standing == Out:
		s.standing, s.lost = Holding, false
		fallthrough
	case s.isFinished():
		s.reasons = append(s.reasons, Reason{Code: FinishedHere})
	case finished && s.standing == Open:
		s.because(Holding, Reason{Code: FinishedElsewhere})
	}
}

// returnTime is for clusters that were cut off together: they do not come back in the same
// second, for each is asked every 10 s only.
const returnTime = 30 * time.Second

// strand leaves parts in clusters that are not heard of as long as nobody takes them: to
// write them off would start them nowhere, and stop them all when the kcp, that was cut off
// itself perhaps, is heard again. What is everywhere runs in no other cluster's place.
func (st *State) strand(sites []*site) {
	var again time.Time
	for _, s := range sites {
		if s.standing != Open || s.weight == 0 || st.Policy.divide == workloadv1alpha1.DivideEverywhere {
			continue
		}
		at := s.cluster.Since.Add(returnTime)
		if !at.After(st.Now) {
			return
		}
		if again.IsZero() || at.Before(again) {
			again = at
		}
	}
	for _, s := range sites {
		has := st.part(s.leaf) > 0 || s.isAutoscaled() && !s.isDeleting()
		if !has || !s.silent || s.standing != Out {
			continue
		}
		s.standing, s.lost, s.stranded = Holding, false, true
		s.reasons = append(s.reasons, Reason{Code: NobodyElse})
		s.lookAgain(again, st.Now)
	}
}

// fenceTime is from the last sign of life of a cluster's syncer to when nothing of the
// root runs there any more. The cluster counts from before that sign.
func (st *State) fenceTime() time.Duration {
	return st.Policy.fenceAfter + st.Root.TerminationGrace + FenceMargin
}

// counts says whether what can run in a cluster counts toward the bound. Of a lost one
// it does only while a fenced root's replicas may run there.
func (s *site) counts(st *State) bool {
	if !s.lost {
		return true
	}
	return st.Policy.fenced() && (s.fence.IsZero() || s.fence.After(st.Now))
}
