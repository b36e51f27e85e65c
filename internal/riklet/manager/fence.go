package manager

import (
	"time"

	"rik.dev/rik/api/rik/fence"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// An instance with a fence runs only while the kcp that it came from is known to have been
// in touch with the cluster less than the time of the fence ago. The controller knows, and
// stops it long before; what counts here is the case that the controller cannot, or cannot
// be heard.

const (
	// asksPerFence is how often a proof is asked for in the time of a fence, and
	// askAtLeast how often at most.
	asksPerFence = 10
	askAtLeast   = time.Second
	// unproven is how long, and at most half a fence, what a riklet found when it began may
	// go on without a proof: the riklet was away for longer than anybody knows, and the
	// kcp waits 25 s more than the fence.
	unproven = 15 * time.Second
)

// keepProof remembers that an instance has a fence, for a riklet that comes after this one.
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

// recall takes over the fences of what the drivers found.
func (m *Manager) recall() {
	for uid, held := range m.cfg.Ledger.Proven() {
		if r := m.runs[uid]; r != nil {
			r.after, r.home = held.After, held.Namespace
		}
	}
}

// until is when an instance with a fence has to stop; zero: never.
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

// isProven says whether an instance may be started.
func (m *Manager) isProven(r *run, now time.Time) bool {
	if r.after == 0 {
		return true
	}
	until := m.until(r)
	return until.IsZero() || now.Before(until)
}

// prove stops what has a fence and no proof, and asks for proofs. It returns when to look
// again; zero: there is nothing to look at.
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
		case r.driver == nil || until.IsZero():
		case !now.Before(until):
			m.cfg.Logger.Warn("stopping an instance whose kcp is not in touch", "instance", r.uid, "fenceAfter", r.after)
			r.stop = true
			r.driver.Stop(r.uid, -1)
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

// earlier is the first of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
