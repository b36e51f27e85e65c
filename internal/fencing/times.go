package fencing

import "time"

// The constants of the guarantee. Each depends on the others: see [Replaceable].
const (
	// HeartbeatInterval is the time between two heartbeats of a syncer.
	HeartbeatInterval = 10 * time.Second
	// trustBeyond is added to the interval of heartbeats. The sum is the maximum age of the last
	// accepted heartbeat when a challenge is answered.
	trustBeyond = 5 * time.Second
	// HeartbeatTimeout is how long the kcp waits for a heartbeat before it considers the cluster
	// silent: four heartbeats. It must be far above [Trust].
	HeartbeatTimeout = 4 * HeartbeatInterval
	// Margin allows for clocks that run at different speeds, and for a slow machine that needs
	// time to stop its replicas.
	Margin = 10 * time.Second
	// unproven is how long instances that were found at the start of the riklet may continue
	// without a proof, but at most half the time of the fence. It is not known how long the riklet
	// was down, and the kcp waits 25 s longer than the fence: HeartbeatTimeout less [Trust].
	unproven = 15 * time.Second
)

// Trust returns the maximum age of the last accepted heartbeat when a challenge is answered.
func Trust(heartbeatInterval time.Duration) time.Duration { return heartbeatInterval + trustBeyond }

// perFence is how often a proof or a challenge is looked at in the time of a fence, so that several
// attempts fit into half of it.
const perFence = 10

// The limits of the intervals. Before the cluster has acknowledged that it fences, the syncer
// checks the Lease at the shortest interval until early after its start, so that the answer is
// known soon.
const (
	least = time.Second
	early = tooLong
	// LongestPace is the longest time between two checks of the Lease.
	LongestPace = 10 * time.Second
)

// Pace returns the time until the syncer checks the Lease again. A fence needs an answer well
// before half of its time is over. If no object asks for a fence (shortest is 0), the check only
// finds out whether the cluster fences.
func Pace(shortest time.Duration, acknowledged bool, running time.Duration) time.Duration {
	switch {
	case shortest > 0:
		return min(max(shortest/perFence, least), LongestPace)
	case !acknowledged && running < early:
		return least
	default:
		return LongestPace
	}
}

// AskInterval returns the time between two requests of a node for the age of the proof.
func AskInterval(after time.Duration) time.Duration { return max(after/perFence, least) }

// ControllerStops returns when the controller stops instances with a fence of the time after. It
// is half the time after the proof. The second half is for delays between the controller and a
// node. It is the zero time, which is in the past, if there is no proof.
func ControllerStops(proven time.Time, after time.Duration) time.Time {
	if proven.IsZero() {
		return time.Time{}
	}
	return proven.Add(after / 2)
}

// NodeStops returns when a node stops instances with a fence of the time after. It is the zero
// time, which is in the past, if there is no proof.
func NodeStops(proven time.Time, after time.Duration) time.Time {
	if proven.IsZero() {
		return time.Time{}
	}
	return proven.Add(after)
}

// Replaceable returns when no replica of a fenced root runs any more in a cluster that the kcp
// considers silent since a time. grace is the termination grace period of the replicas.
//
// It is safe because a heartbeat counts for [Trust], and the kcp considers a cluster silent only
// [HeartbeatTimeout] after it. The last proof is therefore older than the silence, by the
// difference. One fence after the proof, every node has begun to stop the replicas. After the
// grace period they have stopped.
func Replaceable(silent time.Time, after, grace time.Duration) time.Time {
	return silent.Add(after + grace + Margin)
}
