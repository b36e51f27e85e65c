package manager

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// maxUnknown is the share of its instances, as 1/maxUnknown, that a node stops because a
// full list does not name them and the cluster has no record of them. A list that would
// stop more is that of a datastore which has lost them: a restored copy, or another one.
const maxUnknown = 4

// tooMany says whether the cluster has no record of so many of a node's instances that an
// operator has to confirm their end.
func tooMany(unknown, all int) bool { return unknown*maxUnknown > all }

// split sorts what is here by what a full list says of it: gone was deleted, unknown is
// named by nothing.
func split(here []string, list *schedulerv1.Allowed) (gone, unknown []string) {
	may := make(map[string]bool, len(list.GetInstances()))
	for _, in := range list.GetInstances() {
		may[in.GetUid()] = true
	}
	deleted := make(map[string]bool, len(list.GetGone()))
	for _, uid := range list.GetGone() {
		deleted[uid] = true
	}
	for _, uid := range here {
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

// holdID names a hold by all that its confirmation means.
func holdID(reason, cluster string, uids []string) string {
	hash := sha256.New()
	for _, word := range append([]string{reason, cluster}, slices.Sorted(slices.Values(uids))...) {
		_, _ = hash.Write([]byte(word + "\n"))
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

// held is what waits for a confirmation. The zero value waits for nothing.
type held struct {
	hold *schedulerv1.Hold
	// withheld are the instances that stop once it is confirmed.
	withheld map[string]bool
	// cluster is the one that gives orders now; only while another one is obeyed.
	cluster string
	// term is the lower one that was refused.
	term int64
}

// holdBack begins to wait, or goes on with fewer instances under the same id.
func (m *Manager) holdBack(reason string, uids []string, order *schedulerv1.Order) {
	next := held{
		hold: &schedulerv1.Hold{
			Id: holdID(reason, order.GetCluster(), uids), Reason: reason, Instances: int32(min(len(uids), 1<<30)), //nolint:gosec // bounded
		},
		withheld: map[string]bool{},
	}
	for _, uid := range uids {
		next.withheld[uid] = true
	}
	switch reason {
	case rikv1alpha1.ConfirmOtherCluster:
		next.cluster, next.hold.Cluster = order.GetCluster(), m.cfg.Ledger.Cluster()
	case rikv1alpha1.ConfirmLowerTerm:
		next.term, next.hold.Term = order.GetTerm(), m.cfg.Ledger.Term()
	}
	if before := m.held; before.hold.GetReason() == reason && before.cluster == next.cluster && before.term == next.term &&
		!slices.ContainsFunc(uids, func(uid string) bool { return !before.withheld[uid] }) {
		// An operator may be about to confirm it.
		next.hold.Id = before.hold.GetId()
	}
	if m.held.hold.GetId() != next.hold.GetId() {
		m.cfg.Logger.Warn("waiting for a confirmation", "reason", reason, "instances", len(uids), "cluster", order.GetCluster(), "term", order.GetTerm(), "next", "rikctl node confirm")
	}
	m.setHeld(next)
}

// setHeld publishes what waits, if that is news.
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

// Hold is what the node waits for; nil when it waits for nothing. Any goroutine may ask.
func (m *Manager) Hold() *schedulerv1.Hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hold
}

// foreign says whether an order is of another cluster than the one that the node belongs
// to. An order that does not say counts for the node's own.
func (m *Manager) foreign(order *schedulerv1.Order) bool {
	own := m.cfg.Ledger.Cluster()
	return own != "" && order.GetCluster() != "" && own != order.GetCluster()
}

// refuseForeign keeps everything as it is. Only a full list tells what a confirmation would
// stop.
func (m *Manager) refuseForeign(order *schedulerv1.Order) {
	if order.GetAllowed() == nil {
		m.cfg.Logger.Warn("order refused: it is of another cluster", "cluster", order.GetCluster(), "own", m.cfg.Ledger.Cluster())
		return
	}
	_, unknown := split(m.here(), order.GetAllowed())
	m.holdBack(rikv1alpha1.ConfirmOtherCluster, unknown, order)
}

// here lists what a driver has and was not yet told to stop.
func (m *Manager) here() []string {
	var uids []string
	for uid, r := range m.runs {
		if r.driver != nil && !r.stop && r.phase != rikv1alpha1.InstanceTerminated {
			uids = append(uids, uid)
		}
	}
	return uids
}

// endUnmade ends what was ordered and never made, and is not named any more.
func (m *Manager) endUnmade(list *schedulerv1.Allowed) {
	var unmade []string
	for uid, r := range m.runs {
		if r.driver == nil && r.phase != rikv1alpha1.InstanceTerminated {
			unmade = append(unmade, uid)
		}
	}
	gone, unknown := split(unmade, list)
	for _, uid := range append(gone, unknown...) {
		m.end(m.runs[uid], disallowedGrace)
	}
}

// confirmed does what waited, if it is still the same.
func (m *Manager) confirmed(id string) {
	waits := m.held
	if waits.hold == nil || waits.hold.GetId() != id {
		m.cfg.Logger.Info("a confirmation of something else is ignored", "confirmed", id, "waiting", waits.hold.GetId())
		return
	}
	m.cfg.Logger.Warn("an operator has confirmed", "reason", waits.hold.GetReason(), "instances", len(waits.withheld))
	switch waits.hold.GetReason() {
	case rikv1alpha1.ConfirmUnknownInstances:
		m.endAll(waits.withheld)
	case rikv1alpha1.ConfirmOtherCluster:
		if err := m.cfg.Ledger.Move(waits.cluster); err != nil {
			m.cfg.Logger.Error("the cluster is kept in memory only", "err", err)
		}
		m.endAll(waits.withheld)
		if m.cfg.Moved != nil {
			m.cfg.Moved()
		}
	default:
		return // the controller takes a higher term
	}
	// The scheduler answers the news with its full list.
	m.setHeld(held{})
}

func (m *Manager) endAll(uids map[string]bool) {
	for uid := range uids {
		if r := m.runs[uid]; r != nil && r.phase != rikv1alpha1.InstanceTerminated {
			m.cfg.Logger.Info("stopping what the cluster has no record of", "instance", uid)
			m.end(r, disallowedGrace)
		}
	}
}

// dismissed stops everything: the Node was deleted.
func (m *Manager) dismissed() {
	m.cfg.Logger.Warn("the node was deleted from the cluster: stopping everything")
	for _, r := range m.runs {
		if r.phase != rikv1alpha1.InstanceTerminated {
			m.end(r, disallowedGrace)
		}
	}
	m.setHeld(held{})
}
