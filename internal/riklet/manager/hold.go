package manager

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// maxUnknown limits how many instances a node stops because a complete list does not contain them
// and the cluster has no record of them: at most the share 1/maxUnknown. A list that would stop
// more probably comes from a datastore that has lost them, such as a restored backup or another
// datastore.
const maxUnknown = 4

// tooMany reports whether the unknown instances are so many that an operator must confirm their
// end.
func tooMany(unknown, all int) bool { return unknown*maxUnknown > all }

// split sorts the instances here by a complete list. gone are the deleted ones. unknown are those
// that the list does not mention.
func split(presentInstances []string, list *schedulerv1.Allowed) (gone, unknown []string) {
	may := make(map[string]bool, len(list.GetInstances()))
	for _, in := range list.GetInstances() {
		may[in.GetUid()] = true
	}
	deleted := make(map[string]bool, len(list.GetGone()))
	for _, uid := range list.GetGone() {
		deleted[uid] = true
	}
	for _, uid := range presentInstances {
		switch {
		case may[uid]:
		case deleted[uid]:
			gone = append(gone, uid)
		default:
			unknown = append(unknown, uid)
		}
	}
	return gone, unknown
}

// holdID returns the ID of a hold. It covers everything that a confirmation would do.
func holdID(reason, cluster string, uids []string) string {
	hash := sha256.New()
	for _, word := range append([]string{reason, cluster}, slices.Sorted(slices.Values(uids))...) {
		_, _ = hash.Write([]byte(word + "\n"))
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

// held is a decision that waits for a confirmation. In the zero value, nothing waits.
type held struct {
	hold *schedulerv1.Hold
	// withheld are the instances that stop after the confirmation.
	withheld map[string]bool
	// cluster is the cluster that gives orders now. It is set only while the node belongs to
	// another cluster.
	cluster string
	// term is the lower term that was refused.
	term int64
}

// holdBack starts to wait for a confirmation. If the same wait continues with fewer instances, it
// keeps the ID.
func (m *Manager) holdBack(reason string, uids []string, order *schedulerv1.Order) {
	next := held{
		hold: &schedulerv1.Hold{
			Id: holdID(reason, order.GetCluster(), uids), Reason: reason, Instances: int32(min(len(uids), 1<<30)),
			Unknown: m.namesOf(uids),
		},
		withheld: map[string]bool{},
	}
	for _, uid := range uids {
		next.withheld[uid] = true
	}
	switch reason {
	case rikv1alpha1.ConfirmOtherCluster:
		next.cluster, next.hold.Cluster = order.GetCluster(), m.cfg.Checkpoint.Cluster()
	case rikv1alpha1.ConfirmLowerTerm:
		next.term, next.hold.Term = order.GetTerm(), m.cfg.Checkpoint.Term()
	}
	if before := m.held; before.hold.GetReason() == reason && before.cluster == next.cluster && before.term == next.term &&
		!slices.ContainsFunc(uids, func(uid string) bool { return !before.withheld[uid] }) {
		// An operator may be about to confirm the former ID.
		next.hold.Id = before.hold.GetId()
	}
	if m.held.hold.GetId() != next.hold.GetId() {
		m.cfg.Logger.Warn("the node waits for a confirmation by an operator", "reason", reason, "instances", len(uids), "cluster", order.GetCluster(), "term", order.GetTerm(), "next", "rikctl node confirm")
	}
	m.setHeld(next)
}

// maxNamed is how many instances a hold names.
const maxNamed = 64

// namesOf returns the names of the first instances, or their UIDs.
func (m *Manager) namesOf(uids []string) []string {
	var names []string
	for _, uid := range uids {
		name := uid
		if r := m.runs[uid]; r != nil && r.order.GetName() != "" {
			name = r.order.GetNamespace() + "/" + r.order.GetName()
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names[:min(len(names), maxNamed)]
}

// setHeld publishes the pending confirmation if it has changed.
func (m *Manager) setHeld(next held) {
	before := m.held.hold
	m.held = next
	if before.GetId() == next.hold.GetId() && before.GetInstances() == next.hold.GetInstances() {
		return
	}
	m.mu.Lock()
	m.hold = next.hold
	m.mu.Unlock()
	if m.cfg.Held != nil {
		m.cfg.Held()
	}
}

// Hold returns the pending confirmation, or nil if there is none. Any goroutine may call it.
func (m *Manager) Hold() *schedulerv1.Hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hold
}

// fromOtherCluster reports whether an order comes from another cluster than the node's own. An
// order without a cluster counts as the node's own.
func (m *Manager) fromOtherCluster(order *schedulerv1.Order) bool {
	own := m.cfg.Checkpoint.Cluster()
	return own != "" && order.GetCluster() != "" && own != order.GetCluster()
}

// refuseOtherCluster refuses an order of another cluster and changes nothing. Only a complete list
// shows which instances a confirmation would stop, so only such a list creates a hold.
func (m *Manager) refuseOtherCluster(order *schedulerv1.Order) {
	if order.GetAllowed() == nil {
		m.cfg.Logger.Warn("order refused: it comes from another cluster", "cluster", order.GetCluster(), "own", m.cfg.Checkpoint.Cluster())
		return
	}
	_, unknown := split(m.presentInstances(), order.GetAllowed())
	m.holdBack(rikv1alpha1.ConfirmOtherCluster, unknown, order)
}

// presentInstances lists the instances that a driver has and that were not ordered to stop.
func (m *Manager) presentInstances() []string {
	var uids []string
	for uid, r := range m.runs {
		if r.driven && !r.stop && r.phase != rikv1alpha1.InstanceTerminated {
			uids = append(uids, uid)
		}
	}
	return uids
}

// endUncreated ends instances that were ordered but never created, and that the list no longer
// contains.
func (m *Manager) endUncreated(list *schedulerv1.Allowed) {
	var uncreated []string
	for uid, r := range m.runs {
		if !r.driven && r.phase != rikv1alpha1.InstanceTerminated {
			uncreated = append(uncreated, uid)
		}
	}
	gone, unknown := split(uncreated, list)
	for _, uid := range append(gone, unknown...) {
		m.end(m.runs[uid], disallowedGrace)
	}
}

// confirmed carries out the pending decision, if its ID is the confirmed one.
func (m *Manager) confirmed(id string) {
	waits := m.held
	if waits.hold == nil || waits.hold.GetId() != id {
		m.cfg.Logger.Info("ignoring a confirmation that does not match the pending one", "confirmed", id, "waiting", waits.hold.GetId())
		return
	}
	m.cfg.Logger.Warn("carrying out the confirmation of an operator", "reason", waits.hold.GetReason(), "instances", len(waits.withheld))
	switch waits.hold.GetReason() {
	case rikv1alpha1.ConfirmUnknownInstances:
		m.stopAll(waits.withheld)
	case rikv1alpha1.ConfirmOtherCluster:
		if err := m.cfg.Checkpoint.Move(waits.cluster); err != nil {
			m.cfg.Logger.Error("saving the cluster failed; it is only in memory", "err", err)
		}
		m.stopAll(waits.withheld)
		if m.cfg.Moved != nil {
			m.cfg.Moved()
		}
	default:
		return // the controller adopts a higher term
	}
	// The scheduler answers the change of the hold with its complete list.
	m.setHeld(held{})
}

func (m *Manager) stopAll(uids map[string]bool) {
	for uid := range uids {
		if r := m.runs[uid]; r != nil && r.phase != rikv1alpha1.InstanceTerminated {
			m.cfg.Logger.Info("stopping an instance that the cluster has no record of", "instance", uid)
			m.end(r, disallowedGrace)
		}
	}
}

// nodeDeleted stops all instances, because the Node was deleted.
func (m *Manager) nodeDeleted() {
	m.cfg.Logger.Warn("the node was deleted from the cluster; stopping all its instances")
	for _, r := range m.runs {
		if r.phase != rikv1alpha1.InstanceTerminated {
			m.end(r, disallowedGrace)
		}
	}
	m.setHeld(held{})
}
