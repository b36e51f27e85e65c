package fencing

import "time"

// Contact is the state of the contact between a syncer and its kcp.
type Contact int

// The states of a contact.
const (
	// Lost: no heartbeat was accepted recently, or the kcp considers the cluster silent.
	Lost Contact = iota
	// Settling: heartbeats arrive again. The syncer must check that the cluster runs no more than
	// the kcp wants.
	Settling
	// Settled: the syncer may answer challenges.
	Settled
)

func (c Contact) String() string { return [...]string{"Lost", "Settling", "Settled"}[c] }

// Renewals decides when a syncer may renew the Lease by answering its challenge. The Lease is a
// guarantee on which the kcp relies: it replaces the replicas of a silent cluster. A renewal
// therefore means all of this:
//
//   - A heartbeat was accepted that began less than [Renewals.Trust] ago. That is much less than
//     the time for which the kcp waits for a heartbeat. The kcp decides from the last heartbeat
//     that it has received, so no such decision can be older than this proof.
//   - After the challenge was read, the kcp was asked for the Cluster, and did not consider it
//     silent. The renewal covers the time before that request.
//   - Since the kcp was last unreachable, everything that it wants of fenced objects was read
//     from it again and was applied in the cluster. Replicas that were scaled to 0 in the
//     meantime do not return.
//
// The zero value with a Trust is the state of a new syncer, which is Lost. The transitions are:
//
//	Lost ──a heartbeat is accepted──▶ Settling ──everything is applied──▶ Settled
//	any ──no heartbeat for Trust, or the kcp considers the cluster silent──▶ Lost
type Renewals struct {
	// Trust is the maximum age of the beginning of the last accepted heartbeat.
	Trust time.Duration

	// beat is when the last accepted heartbeat began. It is zero if no heartbeat was accepted, or
	// if the kcp has considered the cluster silent since.
	beat time.Time
	// since is when the kcp became reachable again.
	since   time.Time
	settled bool
}

// Beaten records an accepted heartbeat: when it began, when the response came, and whether the
// response shows the cluster as silent.
func (r *Renewals) Beaten(began, answered time.Time, silent bool) {
	switch {
	case silent:
		r.Cut()
	case r.beat.IsZero(), began.Sub(r.beat) >= r.Trust:
		// The kcp may have considered the cluster silent in between.
		r.beat, r.since, r.settled = began, answered, false
	case began.After(r.beat):
		r.beat = began
	}
}

// Cut records that the kcp considers the cluster silent, or does not have the Cluster.
func (r *Renewals) Cut() { r.beat, r.settled = time.Time{}, false }

// Contact returns the state of the contact.
func (r *Renewals) Contact(now time.Time) Contact {
	switch {
	case r.beat.IsZero() || now.Sub(r.beat) >= r.Trust:
		return Lost
	case !r.settled:
		return Settling
	default:
		return Settled
	}
}

// Settle records that a check which began at a time found everything applied.
func (r *Renewals) Settle(began time.Time) {
	if !r.beat.IsZero() && !began.Before(r.since) {
		r.settled = true
	}
}
