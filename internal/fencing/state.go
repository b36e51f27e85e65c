package fencing

import "time"

// State is whether fenced instances may run, as one part of the cluster decides it. It is a
// function of the last proof and the time, and is not stored. With time alone it changes only from
// Open to Closed. Only a later proof changes it from Closed to Open.
type State int

// The states.
const (
	// Closed: the instances must stop, and none may start.
	Closed State = iota
	// Open: the instances may run, until a time.
	Open
	// Free: the instances do not come from a kcp. Their fence has no effect.
	Free
)

func (s State) String() string { return [...]string{"Closed", "Open", "Free"}[s] }

// AtController returns the state by which the controller decides, and until when it is Open.
func AtController(proven time.Time, after time.Duration, now time.Time) (State, time.Time) {
	return until(ControllerStops(proven, after), now)
}

// Node is what a node knows about one fenced instance.
type Node struct {
	// Proof is the proof for the instance's namespace.
	Proof Proof
	// After is the time of its fence.
	After time.Duration
	// Found is when the riklet started, if it found the instance running then. Otherwise it is
	// zero.
	Found time.Time
}

// AtNode returns the state by which a node decides, and until when it is Open. A node that has
// restarted gives its instances a short time to get a proof.
func AtNode(n Node, now time.Time) (State, time.Time) {
	if n.Proof.free {
		return Free, time.Time{}
	}
	stops := NodeStops(n.Proof.proven, n.After)
	if !n.Found.IsZero() {
		if found := n.Found.Add(min(n.After/2, unproven)); found.After(stops) {
			stops = found
		}
	}
	return until(stops, now)
}

func until(stops, now time.Time) (State, time.Time) {
	if now.Before(stops) {
		return Open, stops
	}
	return Closed, time.Time{}
}
