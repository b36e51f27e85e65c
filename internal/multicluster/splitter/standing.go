package splitter

import (
	"slices"
	"time"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/fencing"
)

// site is a cluster with the leaf of the root, and the facts about both.
type site struct {
	name    string
	cluster *Cluster // nil if the cluster was removed
	leaf    *Leaf    // nil if the cluster has no leaf

	standing Standing
	// lost: the cluster is out and does not answer. apart: the splitter must not write the leaf.
	// silent: the cluster is out only because it does not answer. stranded: it keeps parts that
	// no other cluster accepts.
	lost, apart, silent, stranded bool
	// fence is when the replicas in a lost cluster must have stopped. It is zero if that is not
	// known.
	fence time.Time
	// refused is true if the cluster has recently refused the leaf. refusedAt is the time to
	// write on the leaf.
	refused bool
	// kept is true if all clusters refuse the root, and it therefore stays in this one.
	kept      bool
	refusedAt time.Time
	// again is when the standing changes without an event. Zero means never.
	again   time.Time
	reasons []Reason

	weight uint64
	group  string
	// part is the current part, and share is the desired one.
	part, share int64
	// fair is the share that the site would have if it were open, rounded down.
	fair int64
	// most is the number of replicas that can run, and ready is the number of ready ones. Both
	// include only replicas that count toward the bound.
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

// isBound reports whether the leaf has data in the cluster.
func (s *site) isBound() bool { return s.leaf != nil && s.leaf.Bound }

// isFinished reports whether the work of the leaf is finished.
func (s *site) isFinished() bool { return s.leaf != nil && s.leaf.Finished }

func (s *site) isAutoscaled() bool { return s.leaf != nil && s.leaf.Autoscaled }

func (s *site) isDeleting() bool { return s.leaf != nil && s.leaf.Deleting }

// raisable reports whether the part of the site can grow.
func (s *site) raisable() bool {
	return s.standing == Open && !s.isDeleting() && !s.isAutoscaled()
}

// check determines the standing of a cluster for the root.
func (s *site) check(st *State) {
	s.standing = Open
	switch c := s.cluster; {
	case c == nil:
		s.because(Out, Reason{Code: ClusterGone})
		s.lost, s.apart = true, true
		if !s.leaf.LostAt.IsZero() && !s.leaf.LostAt.After(st.Now) {
			s.fence = st.replaceable(s.leaf.LostAt)
		}
	case c.Removing:
		// When a cluster is unregistered, its objects stay as they are.
		s.because(Out, Reason{Code: ClusterLeaving})
		s.lost, s.apart = true, true
	default:
		if st.Follows && !slices.Contains(st.Among, c.Name) {
			s.because(Out, Reason{Code: FollowsElsewhere})
		}
		s.checkPolicy(&st.Policy)
		s.checkHealth(st)
		s.checkRefusal(st)
		if !c.Silent.IsZero() {
			s.fence = st.replaceable(c.Silent)
		}
	}
	if s.lost {
		s.lookAgain(s.fence, st.Now)
	}
}

// checkPolicy compares the cluster with the policy.
func (s *site) checkPolicy(p *Policy) {
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

// checkHealth checks the condition of the cluster, and whether its administrator has cordoned it
// or evicts from it.
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

// checkMissing handles a cluster that no longer serves the type. For this root, it is like a
// cluster that is not ready: its parts are replaced after the grace period.
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

// refusedRetry is the time after which a cluster that has refused a leaf gets its share again.
const refusedRetry = 10 * time.Minute

// checkRefusal gives the share of a cluster that refuses its leaf to other clusters. Replicas of
// an earlier leaf that run there stay.
func (s *site) checkRefusal(st *State) {
	l := s.leaf
	if l == nil || l.Deleting || l.Autoscaled || st.Policy.divide != workloadv1alpha1.DivideReplicas {
		return
	}
	at := l.RefusedAt
	if at.After(st.Now) { // the clock was ahead: try the share again
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

// hold keeps a root that has data in the cluster of the data. If that cluster was removed, the
// data is not available. In that case the root waits for the user to decide.
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

// holdFinished keeps finished work in its cluster, and does not let another cluster repeat it.
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

// returnTime is the time in which clusters that were disconnected together become ready again.
// They do not all return in the same second, because each is probed only every 10 s.
const returnTime = 30 * time.Second

// keepStranded leaves parts in silent clusters if no other cluster accepts them. Giving them up would
// not start them anywhere else. It would stop all of them when the connection returns, even if
// the kcp itself was disconnected. A root that goes to every cluster is an exception: its leaf in
// one cluster does not replace the one in another.
func (st *State) keepStranded(sites []*site) {
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
		s.reasons = append(s.reasons, Reason{Code: NoOtherCluster})
		s.lookAgain(again, st.Now)
	}
}

// replaceable returns when no replica of the root runs any more in a cluster that is silent since a
// time.
func (st *State) replaceable(silent time.Time) time.Time {
	return fencing.Replaceable(silent, st.Policy.fenceAfter, st.Root.TerminationGrace)
}

// counts reports whether the replicas in a cluster count toward the bound. The replicas of a lost
// cluster count only while replicas of a fenced root may run there.
func (s *site) counts(st *State) bool {
	if !s.lost {
		return true
	}
	return st.Policy.fenced() && (s.fence.IsZero() || s.fence.After(st.Now))
}
