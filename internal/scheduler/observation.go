package scheduler

import (
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/scheduler/inventory"
)

const (
	// maxEarly bounds the observations kept for a listing that is not complete.
	// A node tells again what was not acknowledged.
	maxEarly = 1 << 16
	// maxCondemned bounds what nodes can make the scheduler remember by claiming
	// to run what nobody knows. Beyond it they are told to stop it once, each
	// time that they claim it.
	maxCondemned = 1 << 16
)

// sighting is the last observation of an instance. It is kept after it was
// handed over, because a controller may end between reading and writing it; the
// next one gets it again.
type sighting struct {
	observation *schedulerv1.Observation
	handed      bool
}

// observe takes in what a node saw; NodeName says which. It is called with mu
// held. Observations are never changed after this.
func (s *Scheduler) observe(o *schedulerv1.Observation) {
	in := s.inventory.Instance(o.Uid)
	if in == nil || in.State != inventory.Bound || in.Node != o.NodeName {
		s.observeStranger(in, o)
		return
	}
	if known := s.seen[o.Uid]; known != nil && known.observation.NodeName == o.NodeName && o.Sequence <= known.observation.Sequence {
		if known.handed {
			s.acknowledge(known.observation)
		}
		return
	}
	s.seen[o.Uid] = &sighting{observation: o}
	if o.Phase == string(rikv1alpha1.InstanceTerminated) {
		s.inventory.End(o.Uid)
		if session := s.workers[o.NodeName]; session != nil {
			session.forgetOrder(o.Uid)
		}
		s.poke()
	}
	s.forward(o)
}

// observeStranger handles what a node says of an instance that it should not
// have. Before the listing is complete that may yet turn out otherwise.
func (s *Scheduler) observeStranger(in *inventory.Instance, o *schedulerv1.Observation) {
	switch {
	case !s.inventory.Ready():
		if len(s.early) < maxEarly || s.early[o.Uid] != nil {
			s.early[o.Uid] = o
		}
	case o.Phase == string(rikv1alpha1.InstanceTerminated):
		if s.condemned[o.Uid] == o.NodeName || s.condemned[o.Uid] == "" {
			delete(s.condemned, o.Uid)
		}
		if in == nil {
			// The controller may hold a tombstone that can go now.
			s.forward(o)
			return
		}
		s.acknowledge(o)
	case in == nil && s.asks(o.NodeName):
		// Its full list says so, and it holds if they are too many.
		s.log.Warn("node has an instance that the cluster has no record of", "node", o.NodeName, "instance", o.Uid, "phase", o.Phase)
		s.acknowledge(o)
	default:
		s.log.Warn("node has an instance that is not its own", "node", o.NodeName, "instance", o.Uid, "phase", o.Phase)
		s.condemn(o.Uid, o.NodeName)
		s.acknowledge(o)
	}
}

// forward queues an observation for the controller.
func (s *Scheduler) forward(o *schedulerv1.Observation) {
	if s.controller != nil {
		s.controller.put(aboutObservation, o.Uid, &schedulerv1.SyncResponse{
			Message: &schedulerv1.SyncResponse_Observation{Observation: o},
		})
	}
}

// resight queues the last observation of everything for a new controller, which
// drops those that it has written already.
func (s *Scheduler) resight() {
	for _, known := range s.seen {
		s.forward(known.observation)
	}
}

// handed notes that an observation is on its way to the controller.
func (s *Scheduler) handed(o *schedulerv1.Observation) {
	s.metrics.observations.Inc()
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.seen[o.Uid]; known != nil && known.observation == o {
		known.handed = true
	}
	s.acknowledge(o)
}

func (s *Scheduler) acknowledge(o *schedulerv1.Observation) {
	session := s.workers[o.NodeName]
	if session == nil {
		return
	}
	session.put(aboutAck, o.Uid, s.stamp(&schedulerv1.Order{
		Message: &schedulerv1.Order_Ack{Ack: &schedulerv1.Ack{Uid: o.Uid, Sequence: o.Sequence}},
	}))
}

// terminated says whether the node said that nothing of the instance is left.
func (s *Scheduler) terminated(uid string) bool {
	known := s.seen[uid]
	return known != nil && known.observation.Phase == string(rikv1alpha1.InstanceTerminated)
}

// condemn has a node leave nothing of an instance, now or when it comes back.
// Without a node it is whichever says that it has it.
func (s *Scheduler) condemn(uid, node string) {
	if len(s.condemned) < maxCondemned {
		s.condemned[uid] = node
	}
	if !s.inventory.Ready() {
		return // Synced tells every node.
	}
	if node != "" {
		s.execute(s.workers[node], uid)
		return
	}
	for _, session := range s.workers {
		if session.running[uid] {
			s.execute(session, uid)
		}
	}
}

func (s *Scheduler) execute(session *workerStream, uid string) {
	if session == nil {
		return
	}
	session.put(aboutOrder, uid, s.stopOrder(uid, inventory.Stop{GraceSeconds: -1, Force: true}))
}
