package fencing

import "time"

// Proof is what a node knows about the contact of a namespace with its kcp. The zero value is no
// proof.
type Proof struct {
	// askedAt is the time of the unanswered request. It is zero if no request is pending.
	askedAt time.Time
	// proven is a time at or after which the kcp was reachable, by the clock of the node. It is as
	// late as the answers prove.
	proven time.Time
	// free is true if the controller's last answer was that the namespace belongs to no kcp.
	free bool
}

// Ask records that the node asks its controller. The caller takes the time before it sends the
// request, so that the proof is rather too old than too young. Ask returns false if a request is
// pending.
func (p *Proof) Ask(now time.Time) bool {
	if !p.askedAt.IsZero() {
		return false
	}
	p.askedAt = now
	return true
}

// Forget records that the request gets no answer.
func (p *Proof) Forget() { p.askedAt = time.Time{} }

// Answer is the answer of a controller to a request.
type Answer struct {
	// Failed means that the controller does not know. Such an answer only ends the request.
	Failed bool
	// Free means that the namespace belongs to no kcp.
	Free bool
	// Age is the age of the last proof. nil means that there is no proof.
	Age *time.Duration
}

// Answered applies an answer. It returns false if no request is pending.
func (p *Proof) Answered(a Answer) bool {
	if p.askedAt.IsZero() {
		return false
	}
	asked := p.askedAt
	p.askedAt = time.Time{}
	if a.Failed {
		return true
	}
	p.free = a.Free
	if a.Age != nil {
		if at := asked.Add(-max(*a.Age, 0)); at.After(p.proven) {
			p.proven = at
		}
	}
	return true
}

// Proven returns the time that is proven. It is zero if there is no proof.
func (p Proof) Proven() time.Time { return p.proven }
