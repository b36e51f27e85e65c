package manager

import (
	"time"

	"rik.dev/rik/api/rik/fence"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/fencing"
)

// An instance with a fence runs only while it is known that the kcp it came from was connected to
// the cluster within the time of the fence. Normally the controller checks that and stops the
// instance long before. The check here is for the case that the controller cannot check, or that
// the node cannot reach the controller. The package fencing has the times and the states.

// saveProof saves that an instance has a fence, so that the fence survives a restart of the
// riklet.
func (m *Manager) saveProof(r *run, template *rikv1alpha1.InstanceTemplate) {
	after, asks := fence.After(template.Annotations)
	if !asks || r.after == after {
		return
	}
	r.after, r.home = after, r.order.GetNamespace()
	if err := m.cfg.Checkpoint.SetProof(r.uid, r.home, after); err != nil {
		m.cfg.Logger.Error("saving a fence failed; it is only in memory", "instance", r.uid, "err", err)
	}
}

// restoreFences restores the fences of instances that the driver found.
func (m *Manager) restoreFences() {
	for uid, held := range m.cfg.Checkpoint.Proofs() {
		if r := m.runs[uid]; r != nil {
			r.after, r.home = held.After, held.Namespace
		}
	}
}

// fenceState returns whether an instance with a fence may run, and until when.
func (m *Manager) fenceState(r *run, now time.Time) (fencing.State, time.Time) {
	n := fencing.Node{Proof: m.cfg.Objects.Fence(r.home), After: r.after}
	if r.found {
		n.Found = m.began
	}
	return fencing.AtNode(n, now)
}

// isProven reports whether an instance may be started.
func (m *Manager) isProven(r *run, now time.Time) bool {
	if r.after == 0 {
		return true
	}
	state, _ := m.fenceState(r, now)
	return state != fencing.Closed
}

// prove stops instances that have a fence and no valid proof, and requests proofs. It returns
// when to check again; zero means never.
func (m *Manager) prove(now time.Time) (again time.Time) {
	shortest := map[string]time.Duration{}
	for _, r := range m.runs {
		if r.after == 0 || r.stop || r.phase.Ended() || r.phase == rikv1alpha1.InstanceTerminated {
			continue
		}
		if interval := fencing.AskInterval(r.after); shortest[r.home] == 0 || interval < shortest[r.home] {
			shortest[r.home] = interval
		}
		switch state, until := m.fenceState(r, now); {
		case !r.driven || state == fencing.Free:
		case state == fencing.Closed:
			m.cfg.Logger.Warn("stopping an instance because its kcp was not reachable for the fence time", "instance", r.uid, "fenceAfter", r.after)
			r.stop = true
			m.driver.Stop(r.uid, -1)
		default:
			again = earlier(again, until)
		}
	}
	for home, interval := range shortest {
		if next := m.asked[home].Add(interval); now.Before(next) {
			again = earlier(again, next)
			continue
		}
		m.asked[home] = now
		m.cfg.Objects.AskFence(home)
		again = earlier(again, now.Add(interval))
	}
	for home := range m.asked {
		if shortest[home] == 0 {
			delete(m.asked, home)
		}
	}
	return again
}

// earlier returns the first of two times. A zero a does not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
