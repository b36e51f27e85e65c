package scheduler

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

func TestLostNodeIsReportedAndDelaysNoOther(t *testing.T) {
	h := newHarness(t)
	silent, lively := h.join("silent"), h.join("lively")
	c := h.joinController(1, "silent", "lively", "absent")
	c.synced()
	h.settle()
	c.news()
	for range 3 {
		h.later(DefaultHeartbeatInterval)
		lively.beat()
	}
	h.settle()
	if got := c.news().nodes; len(got) != 0 {
		t.Fatalf("reports before the deadline: %v", got)
	}
	h.later(DefaultNodeTimeout - 3*DefaultHeartbeatInterval)
	h.settle()
	got := c.news().nodes
	if len(got) != 2 || got["silent"].GetConnected() || got["absent"].GetConnected() {
		t.Fatalf("reports at the deadline = %v, want silent and absent lost", got)
	}
	c.pending("1", "2")
	h.settle()
	for uid, node := range c.ackAll(c.news()) {
		if node != "lively" {
			t.Errorf("%s was placed on %s, want lively", uid, node)
		}
	}
	silent.beat()
	h.settle()
	if r := c.news().nodes["silent"]; r == nil || !r.Connected || len(r.Info) == 0 {
		t.Errorf("report after the node returned = %v, want it connected", r)
	}
}

func TestReconnectWithinTheDeadlineIsNoLoss(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.synced()
	h.settle()
	c.news()
	node.close()
	h.settle()
	c.pending("x")
	h.settle()
	sent := c.news()
	if len(sent.nodes) != 0 || sent.unplaced["x"] != "NodesNotReady" {
		t.Fatalf("sent %+v while the node was away, want no report and x unplaced", sent)
	}
	h.join("a")
	h.settle()
	sent = c.news()
	if sent.bindings["x"] != "a" || !sent.nodes["a"].GetConnected() {
		t.Errorf("sent %+v after it came back, want x placed", sent)
	}
}

// TestDeletedNodeIsNotLostLater: after a node's deletion the scheduler keeps no state of it and
// sends no reports about it.
func TestDeletedNodeIsNotLostLater(t *testing.T) {
	h := newHarness(t)
	node, stays := h.join("a"), h.join("b")
	c := h.joinController(1, "a", "b")
	c.synced()
	h.settle()
	node.close()
	h.settle()
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_NodeGone{NodeGone: &schedulerv1.NodeGone{Name: "a"}}})
	h.settle()
	c.news()
	h.later(DefaultNodeTimeout - 1)
	stays.beat()
	h.later(1)
	if got := c.news().nodes; len(got) != 0 {
		t.Errorf("reports at the deadline = %v, want none", got)
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.s.registers["a"] != nil || h.s.registers["b"] == nil {
		t.Errorf("registrations are kept of %d nodes, want that of b only", len(h.s.registers))
	}
}

func TestSecondStreamOfANodeEndsTheFirst(t *testing.T) {
	h := newHarness(t)
	first := h.join("a")
	h.settle()
	second := h.join("a")
	h.settle()
	if got := status.Code(first.ended()); got != codes.Aborted {
		t.Errorf("first stream ended with %v, want Aborted", first.ended())
	}
	impostor := register(t, "a")
	impostor.MachineId = "another"
	third := h.connect(impostor)
	third.listen()
	h.settle()
	if got := status.Code(third.ended()); got != codes.AlreadyExists || second.ended() != nil {
		t.Errorf("another machine's stream ended with %v (and the node's with %v), want AlreadyExists", third.ended(), second.ended())
	}
	h.later(DefaultNodeTimeout)
	h.settle()
	fourth := h.connect(impostor)
	fourth.listen()
	h.settle()
	if fourth.ended() != nil {
		t.Errorf("another machine after the first was lost: %v, want it taken", fourth.ended())
	}
}

// TestAnotherRikletDoesNotEndTheFirstStream: before this fix, two riklets with the same node
// name ended each other's connection several times a second.
func TestAnotherRikletDoesNotEndTheFirstStream(t *testing.T) {
	h := newHarness(t)
	as := func(installation, run string) *schedulerv1.Register {
		r := register(t, "a")
		status := &rikv1alpha1.NodeStatus{}
		if err := status.Unmarshal(r.Status); err != nil {
			t.Fatal(err)
		}
		status.Info.InstallationID = installation
		encoded, err := status.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		r.Status, r.RunId = encoded, run
		return r
	}
	connect := func(installation, run string) *workerPeer {
		w := h.connect(as(installation, run))
		w.listen()
		h.settle()
		return w
	}
	first := connect("i", "1")
	for what, second := range map[string]*workerPeer{
		"another riklet of the machine":   connect("j", "2"),
		"a copy of the riklet":            connect("i", "2"),
		"one that does not say who it is": connect("i", ""),
	} {
		if got := status.Code(second.ended()); got != codes.AlreadyExists || first.ended() != nil {
			t.Errorf("%s ended with %v and the first with %v, want AlreadyExists and nothing", what, second.ended(), first.ended())
		}
	}
	again := connect("i", "1")
	if got := status.Code(first.ended()); got != codes.Aborted || again.ended() != nil {
		t.Errorf("the first ended with %v when it connected anew (%v), want Aborted", first.ended(), again.ended())
	}
	h.later(DefaultNodeTimeout)
	h.settle()
	if next := connect("i", "2"); next.ended() != nil {
		t.Errorf("the next run after silence: %v, want it taken", next.ended())
	}
}

func TestNodeThatObeysANewerControllerGetsNothing(t *testing.T) {
	h := newHarness(t)
	r := register(t, "a")
	r.HighestTerm = 9
	w := h.connect(r)
	w.listen()
	c := h.joinController(8, "a")
	c.synced()
	c.pending("x")
	h.settle()
	if got := c.news(); len(got.bindings) != 0 {
		t.Errorf("placed %v", got.bindings)
	}
	c = h.joinController(9, "a")
	c.pending("x")
	c.synced()
	h.settle()
	if got := c.news(); got.bindings["x"] != "a" {
		t.Errorf("bindings of term 9 = %v, want x on a", got.bindings)
	}
}

// TestNodeThatLostItsRecords: a node that lost its records counts its observations from the
// start. The scheduler still accepts them.
func TestNodeThatLostItsRecords(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.bound("x", "a")
	c.synced()
	h.settle()
	node.observe("x", 50, rikv1alpha1.InstanceRunning)
	h.settle()
	c.news()
	node.close()
	h.settle()
	node = h.join("a")
	h.settle()
	node.observe("x", 1, rikv1alpha1.InstanceCreating)
	h.settle()
	if o := c.news().observations["x"]; o.GetSequence() != 1 {
		t.Errorf("observation = %v, want the one with sequence 1", o)
	}
}
