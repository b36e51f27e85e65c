package manager

import (
	"time"

	"rik.dev/rik/api/rik/fence"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// An instance with a fence runs only while it is known that the kcp it came from was connected to
// the cluster within the time of the fence. Normally the controller checks that and stops the
// instance long before. The check here is for the case that the controller cannot check, or that
// the node cannot reach the controller.

const (
	// asksPerFence is how often a proof is requested in the time of a fence. askAtLeast is the
	// shortest time between two requests.
	asksPerFence = 10
	askAtLeast   = time.Second
	// unproven is how long instances that were found at the start of the riklet may continue
	// without a proof, but at most half the time of the fence. It is not known how long the
	// riklet was down, and the kcp waits 25 s longer than the fence.
	unproven = 15 * time.Second
)

// keepProof saves that an instance has a fence, so that the fence survives a restart of the
// riklet.
func (m *Manager) keepProof(r *run, template *rikv1alpha1.InstanceTemplate) {
	after, asks := fence.After(template.Annotations)
	if !asks || r.after == after {
		return
	}
	r.after, r.home = after, r.order.GetNamespace()
	if err := m.cfg.Ledger.Prove(r.uid, r.home, after); err != nil {
		m.cfg.Logger.Error("fence is kept in memory only", "instance", r.uid, "err", err)
	}
}

// recall restores the fences of instances that the driver found.
func (m *Manager) recall() {
	for uid, held := range m.cfg.Ledger.Proven() {
		if r := m.runs[uid]; r != nil {
			r.after, r.home = held.After, held.Namespace
		}
	}
}

// until returns when an instance with a fence must stop; zero means never.
func (m *Manager) until(r *run) time.Time {
	proven, free := m.cfg.Objects.Fence(r.home)
	until := proven.Add(r.after)
	if free {
		return time.Time{}
	}
	if found := m.began.Add(min(r.after/2, unproven)); r.found && found.After(until) {
		return found
	}
	return until
}

// isProven reports whether an instance may be started.
func (m *Manager) isProven(r *run, now time.Time) bool {
	if r.after == 0 {
		return true
	}
	until := m.until(r)
	return until.IsZero() || now.Before(until)
}

// prove stops instances that have a fence and no valid proof, and requests proofs. It returns
// when to check again; zero means never.
func (m *Manager) prove(now time.Time) (again time.Time) {
	soonest := map[string]time.Duration{}
	for _, r := range m.runs {
		if r.after == 0 || r.stop || r.phase.Ended() || r.phase == rikv1alpha1.InstanceTerminated {
			continue
		}
		if interval := max(r.after/asksPerFence, askAtLeast); soonest[r.home] == 0 || interval < soonest[r.home] {
			soonest[r.home] = interval
		}
		until := m.until(r)
		switch {
		case !r.driven || until.IsZero():
		case !now.Before(until):
			m.cfg.Logger.Warn("stopping an instance whose kcp is not in touch", "instance", r.uid, "fenceAfter", r.after)
			r.stop = true
			m.driver.Stop(r.uid, -1)
		default:
			again = earlier(again, until)
		}
	}
	for home, interval := range soonest {
		if next := m.asked[home].Add(interval); now.Before(next) {
			again = earlier(again, next)
			continue
		}
		m.asked[home] = now
		m.cfg.Objects.AskFence(home)
		again = earlier(again, now.Add(interval))
	}
	for home := range m.asked {
		if soonest[home] == 0 {
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
