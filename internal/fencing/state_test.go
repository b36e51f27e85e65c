package fencing_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"rik.dev/rik/internal/fencing"
)

// seconds draws a duration.
func seconds(t *rapid.T, from, to int, label string) time.Duration {
	return time.Duration(rapid.IntRange(from*1000, to*1000).Draw(t, label)) * time.Millisecond
}

// proofOf returns a proof that the kcp was reachable at a time.
func proofOf(proven time.Time) fencing.Proof {
	var p fencing.Proof
	var none time.Duration
	p.Ask(proven)
	p.Answered(fencing.Answer{Age: &none})
	return p
}

// TestNodesStopBeforeReplicasAreReplaced tests the chain of the constants. A challenge is answered
// as late as a heartbeat allows, and the kcp considers the cluster silent as early as it can.
func TestNodesStopBeforeReplicasAreReplaced(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		after, grace := seconds(t, 10, 7200, "fence"), seconds(t, 0, 600, "grace")
		beat := start.Add(seconds(t, 0, 100, "heartbeat"))
		proven := beat.Add(fencing.Trust(fencing.HeartbeatInterval))
		silent := beat.Add(fencing.HeartbeatTimeout)
		controller, node := fencing.ControllerStops(proven, after), fencing.NodeStops(proven, after)
		if !controller.Before(node) {
			t.Errorf("the controller stops at %v, and the node before it at %v", controller, node)
		}
		stopped := node.Add(grace)
		if left, want := fencing.Replaceable(silent, after, grace).Sub(stopped), fencing.Margin+25*time.Second; left != want {
			t.Errorf("the replicas are replaced %v after they stopped, want %v", left, want)
		}
	})
}

// TestARestartedNodeStopsInTime tests a node whose riklet starts long after the last proof. The
// riklet was dead while the fence closed. It stops the instances in the time that the kcp adds.
func TestARestartedNodeStopsInTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		after := seconds(t, 10, 7200, "fence")
		began := start.Add(seconds(t, 0, int(after/time.Second), "start"))
		proven := start
		n := fencing.Node{After: after, Found: began}
		_, until := fencing.AtNode(n, began)
		if until.Sub(began) > min(after/2, 15*time.Second) {
			t.Errorf("a restarted node keeps its instances for %v without a proof", until.Sub(began))
		}
		if silent := proven.Add(25 * time.Second); !until.Before(fencing.Replaceable(silent, after, 0)) {
			t.Errorf("instances stop at %v, after they are replaced", until)
		}
	})
}

// TestTransitions tests the states of both parts over time. Without a later proof, a fence only
// closes. It says until when it is open.
func TestTransitions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		after := seconds(t, 10, 600, "fence")
		parts := map[string]func(proven, now time.Time) (fencing.State, time.Time){
			"controller": func(proven, now time.Time) (fencing.State, time.Time) {
				return fencing.AtController(proven, after, now)
			},
			"node": func(proven, now time.Time) (fencing.State, time.Time) {
				n := fencing.Node{After: after}
				if !proven.IsZero() {
					n.Proof = proofOf(proven)
				}
				return fencing.AtNode(n, now)
			},
		}
		for name, part := range parts {
			if state, _ := part(time.Time{}, start); state != fencing.Closed {
				t.Errorf("%s: without a proof the fence is %v", name, state)
			}
			now, before := start, fencing.Open
			for range 20 {
				now = now.Add(seconds(t, 0, 60, "passes"))
				state, until := part(start, now)
				if before == fencing.Closed && state != fencing.Closed {
					t.Fatalf("%s: the fence opens without a proof", name)
				}
				if state == fencing.Open {
					if last, _ := part(start, until.Add(-1)); last != fencing.Open {
						t.Errorf("%s: the fence is %v just before %v", name, last, until)
					}
					if next, _ := part(start, until); next != fencing.Closed {
						t.Errorf("%s: the fence is %v at %v, when it closes", name, next, until)
					}
				}
				before = state
			}
			if state, _ := part(now, now); state != fencing.Open {
				t.Errorf("%s: with a new proof the fence is %v", name, state)
			}
		}
	})
}

// TestProofIsNeverTooYoung tests that a node never believes in a later contact than there was,
// however long requests and answers take.
func TestProofIsNeverTooYoung(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var p fencing.Proof
		now, latest := start, time.Time{}
		for range 30 {
			now = now.Add(seconds(t, 0, 20, "passes"))
			if !p.Ask(now) {
				t.Fatal("an answered request is pending")
			}
			if p.Ask(now) {
				t.Fatal("two requests are pending")
			}
			contact := now.Add(-seconds(t, 0, 60, "age of the contact"))
			now = now.Add(seconds(t, 0, 30, "request"))
			before, age := p.Proven(), now.Sub(contact)
			a := rapid.SampledFrom([]fencing.Answer{{Age: &age}, {Failed: true}, {}, {Failed: true, Age: &age}}).Draw(t, "answer")
			now = now.Add(seconds(t, 0, 30, "answer"))
			if rapid.Bool().Draw(t, "the connection is lost") {
				p.Forget()
			}
			if p.Answered(a) && !a.Failed && a.Age != nil && contact.After(latest) {
				latest = contact
			}
			if p.Proven().After(latest) {
				t.Fatalf("the proof is of %v, and the last contact was at %v", p.Proven(), latest)
			}
			if p.Proven().Before(before) {
				t.Fatal("the proof goes back")
			}
			p.Forget()
		}
	})
}

// TestFree tests a namespace that belongs to no kcp.
func TestFree(t *testing.T) {
	t.Parallel()
	var p fencing.Proof
	p.Ask(start)
	p.Answered(fencing.Answer{Free: true})
	if state, _ := fencing.AtNode(fencing.Node{Proof: p, After: time.Minute}, start); state != fencing.Free {
		t.Errorf("the fence is %v, want Free", state)
	}
	p.Ask(start)
	p.Answered(fencing.Answer{})
	if state, _ := fencing.AtNode(fencing.Node{Proof: p, After: time.Minute}, start); state != fencing.Closed {
		t.Errorf("a namespace that belongs to a kcp is %v, want Closed", state)
	}
}

// TestSeveralAttempts tests that requests and checks are frequent enough for the shortest fence.
func TestSeveralAttempts(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{10 * time.Second, time.Minute, time.Hour} {
		if ask, pace := fencing.AskInterval(after), fencing.Pace(after, true, time.Hour); ask > after/10 || pace > after/10 {
			t.Errorf("fence %v: proofs are requested every %v and the Lease is checked every %v, want a tenth at most", after, ask, pace)
		}
	}
	if fencing.HeartbeatTimeout < 2*fencing.Trust(fencing.HeartbeatInterval) {
		t.Error("a heartbeat counts for almost as long as the kcp waits for the next one")
	}
}
