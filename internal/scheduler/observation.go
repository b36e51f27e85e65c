package scheduler

import (
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/scheduler/inventory"
)

const (
	// maxEarly bounds the observations kept while a listing is not complete. A node sends an
	// observation again if it was not acknowledged.
	maxEarly = 1 << 16
	// maxRemovals bounds the memory that nodes can make the scheduler use by reporting unknown
	// instances. Above the bound, a node is ordered to stop such an instance once for each
	// report.
	maxRemovals = 1 << 16
)

// lastObservation is the last observation of an instance. It is kept after it was sent, because a
// controller may end between reading and writing it. The next controller receives it again.
type lastObservation struct {
	observation *schedulerv1.Observation
	handed      bool
}

// observe handles an observation. NodeName is the node that sent it. The caller holds mu.
// Observations do not change after this.
func (s *Scheduler) observe(o *schedulerv1.Observation) {
	in := s.inventory.Instance(o.Uid)
	if in == nil || in.State != inventory.Bound || in.Node != o.NodeName {
		s.observeUnassigned(in, o)
		return
	}
	if known := s.seen[o.Uid]; known != nil && known.observation.NodeName == o.NodeName && o.Sequence <= known.observation.Sequence {
		if known.handed {
			s.acknowledge(known.observation)
		}
		return
	}
	s.seen[o.Uid] = &lastObservation{observation: o}
	if o.Phase == string(rikv1alpha1.InstanceTerminated) {
		s.inventory.End(o.Uid)
		if session := s.workers[o.NodeName]; session != nil {
			session.forgetOrder(o.Uid)
		}
		s.wakeLoop()
	}
	s.forward(o)
}

// observeUnassigned handles an observation of an instance that does not belong to the node.
// Before the listing is complete, the instance may turn out to belong to it.
func (s *Scheduler) observeUnassigned(in *inventory.Instance, o *schedulerv1.Observation) {
	switch {
	case !s.inventory.Ready():
		if len(s.early) < maxEarly || s.early[o.Uid] != nil {
			s.early[o.Uid] = o
		}
	case o.Phase == string(rikv1alpha1.InstanceTerminated):
		if s.removals[o.Uid] == o.NodeName || s.removals[o.Uid] == "" {
			delete(s.removals, o.Uid)
		}
		if in == nil {
			// The controller may have a tombstone that it can now remove.
			s.forward(o)
			return
		}
		s.acknowledge(o)
	case in == nil && s.asks(o.NodeName):
		// The full set that the node receives does not contain the instance. The node waits for a
		// confirmation if it has too many such instances.
		s.log.Warn("a node reports an instance that the cluster has no record of", "node", o.NodeName, "instance", o.Uid, "phase", o.Phase)
		s.acknowledge(o)
	default:
		s.log.Warn("a node reports an instance that belongs to another node", "node", o.NodeName, "instance", o.Uid, "phase", o.Phase)
		s.orderRemoval(o.Uid, o.NodeName)
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

// resendObservations queues the last observation of every instance for a new controller. The controller
// ignores those that it has already written.
func (s *Scheduler) resendObservations() {
	for _, known := range s.seen {
		s.forward(known.observation)
	}
}

// handed records that an observation was sent to the controller.
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

// terminated reports whether the node reported that no part of the instance is left.
func (s *Scheduler) terminated(uid string) bool {
	known := s.seen[uid]
	return known != nil && known.observation.Phase == string(rikv1alpha1.InstanceTerminated)
}

// orderRemoval orders a node to remove an instance completely, now or when the node reconnects.
// Without a node, the order goes to any node that reports the instance.
func (s *Scheduler) orderRemoval(uid, node string) {
	if len(s.removals) < maxRemovals {
		s.removals[uid] = node
	}
	if !s.inventory.Ready() {
		return // Synced sends it to every node.
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
