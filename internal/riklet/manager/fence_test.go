package manager

import (
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance/instancefake"
	"rik.dev/rik/internal/rpc/nodev1"
)

// answerFences answers the requests for fence proofs, and nothing else. age is the age of the
// proof, or nil for no proof. It returns the number of requests.
func (n *node) answerFences(age *time.Duration, found bool) int {
	n.t.Helper()
	asked := 0
	for _, get := range n.objects.PendingRequests() {
		if get.GetKind() != nodev1.Kind_KIND_FENCE {
			continue
		}
		asked++
		answer := &nodev1.Object{Kind: get.GetKind(), Namespace: get.GetNamespace(), Found: found}
		if age != nil {
			millis := age.Milliseconds()
			answer.AgeMillis = &millis
		}
		n.objects.Deliver(answer)
	}
	n.settle()
	return asked
}

// pass lets time pass in which proofs of the given age arrive.
func (n *node) pass(seconds int, age *time.Duration, found bool) (asked int) {
	for range seconds {
		time.Sleep(time.Second)
		n.settle()
		asked += n.answerFences(age, found)
	}
	return asked
}

func aged(d time.Duration) *time.Duration { return &d }

// An instance with a fence of 30 s runs while proofs arrive that are younger.
func TestProofsAllowFencedInstances(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.run(1, "a", "proof30s")
		n.deliver()
		n.run(1, "plain", "r1")
		n.deliver()
		n.wantRunning("plain") // until there is a proof
		n.pass(5, nil, true)
		n.wantRunning("plain")
		n.pass(5, aged(2*time.Second), true)
		n.wantRunning("a", "plain")
		if asked := n.pass(60, aged(2*time.Second), true); asked < 15 || asked > 25 {
			t.Errorf("asked %d times in a minute, want about 20", asked)
		}
		n.wantRunning("a", "plain")
		// Old proofs do not count. The last valid proof was 2 s old when it was requested, at
		// most 3 s ago.
		n.pass(24, aged(time.Hour), true)
		n.wantRunning("a", "plain")
		n.pass(5, aged(time.Hour), true)
		n.wantRunning("plain")
		n.want("a", rikv1alpha1.InstanceTerminated)
		n.pass(5, aged(time.Second), true)
		n.wantRunning("plain") // the controller orders another
	})
}

// No proof arrives, although neither the controller nor the scheduler is lost.
func TestMissingAnswerIsNoProof(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.run(1, "a", "proof30s")
		n.deliver()
		n.pass(5, aged(0), true)
		n.wantRunning("a")
		time.Sleep(26 * time.Second)
		n.settle()
		n.wantRunning("a")
		time.Sleep(4 * time.Second)
		n.settle()
		n.wantRunning()
	})
}

// A slow answer proves only the state at the time of the request.
func TestProofCountsFromItsRequest(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.run(1, "a", "proof30s")
		n.deliver()
		n.pass(4, aged(0), true)
		n.wantRunning("a")
		n.objects.Reconnected()
		time.Sleep(4 * time.Second)
		n.settle() // requested
		time.Sleep(20 * time.Second)
		n.answerFences(aged(0), true)
		time.Sleep(11 * time.Second)
		n.settle()
		n.wantRunning()
	})
}

// In a namespace that does not come from a kcp, the fence has no effect.
func TestAnnotationOutsideAKCPIsIgnored(t *testing.T) {
	bubble(t, instancefake.Config{}, func(_ *testing.T, n *node) {
		n.run(1, "a", "proof30s")
		n.deliver()
		n.pass(2, nil, false)
		n.wantRunning("a")
		time.Sleep(time.Hour)
		n.settle()
		n.wantRunning("a")
	})
}

// A riklet that restarts has a short time to get a proof.
func TestFencesSurviveARestart(t *testing.T) {
	bubble(t, instancefake.Config{}, func(_ *testing.T, n *node) {
		for _, uid := range []string{"a", "b"} {
			n.run(1, uid, "proof30s")
			n.deliver()
		}
		n.pass(5, aged(0), true)
		n.wantRunning("a", "b")
		n.stop()
		n.boot(instancefake.Config{})
		n.pass(20, aged(0), true) // it requests proofs, although it has no orders
		n.wantRunning("a", "b")
		n.stop()
		n.boot(instancefake.Config{})
		time.Sleep(14 * time.Second)
		n.settle()
		n.wantRunning("a", "b")
		time.Sleep(2 * time.Second)
		n.settle()
		n.wantRunning()
	})
}
