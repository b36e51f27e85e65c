package scheduler

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
)

func TestInstanceReachesItsNodeOnlyWhenDurable(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(3, "a")
	h.settle()
	if got := node.orders(); !slices.Equal(got.first, []string{"admitted"}) {
		t.Fatalf("orders before the controller synced = %v, want admitted alone", got.first)
	}
	c.synced()
	c.pending("x", "y")
	h.settle()
	sent := c.news()
	if diff := cmp.Diff(map[string]string{"x": "a", "y": "a"}, sent.bindings); diff != "" {
		t.Fatalf("bindings (-want +got):\n%s", diff)
	}
	if r := sent.nodes["a"]; r == nil || !r.Connected || len(r.Info) == 0 || r.Labels["asked"] != "for" {
		t.Fatalf("report of the node = %v, want it connected with what it sent", r)
	}
	got := node.orders()
	if !slices.Equal(got.first, []string{"allowed"}) || len(got.allowed) != 0 || got.lastTerm != 3 {
		t.Fatalf("orders before the acknowledgement = %+v, want an empty full set of term 3", got)
	}
	c.ack("x", true)
	c.ack("y", false)
	h.settle()
	if got = node.orders(); !got.runs["x"] || got.runs["y"] || got.lastTerm != 3 {
		t.Fatalf("orders after the acknowledgement = %+v, want to run x alone", got)
	}
	node.observe("x", 1, rikv1alpha1.InstanceCreating)
	node.observe("x", 2, rikv1alpha1.InstanceRunning)
	h.settle()
	o := c.news().observations["x"]
	if o == nil || o.Sequence != 2 || o.Phase != "Running" || o.NodeName != "a" {
		t.Fatalf("observation = %v, want sequence 2 of node a", o)
	}
	if acks := node.orders().acks; acks["x"] != 2 {
		t.Fatalf("acknowledged %v, want x up to 2", acks)
	}
}

func TestTerms(t *testing.T) {
	h := newHarness(t)
	first := h.joinController(5)
	h.settle()
	low := h.controller(4)
	low.listen()
	h.settle()
	if got := status.Code(low.ended()); got != codes.FailedPrecondition {
		t.Errorf("lower term ended with %v, want FailedPrecondition", low.ended())
	}
	if first.ended() != nil {
		t.Errorf("the lower term ended the stream of the higher: %v", first.ended())
	}
	same := h.joinController(5)
	h.settle()
	if got := status.Code(first.ended()); got != codes.Aborted {
		t.Errorf("replaced stream ended with %v, want Aborted", first.ended())
	}
	same.close()
	h.settle()
	low = h.controller(4)
	low.listen()
	h.settle()
	if got := status.Code(low.ended()); got != codes.FailedPrecondition {
		t.Errorf("lower term after the higher left ended with %v, want FailedPrecondition", low.ended())
	}
}

func TestFirstMessageIsChecked(t *testing.T) {
	h := newHarness(t)
	c := h.controller(1)
	c.listen()
	for name, r := range map[string]*schedulerv1.Register{
		"empty name": {}, "bad name": {NodeName: "../etc"}, "bad status": {NodeName: "a", Status: []byte("\xff\xff")},
	} {
		w := h.connect(r)
		w.listen()
		h.settle()
		if got := status.Code(w.ended()); got != codes.InvalidArgument {
			t.Errorf("%s: ended with %v, want InvalidArgument", name, w.ended())
		}
	}
}

// TestSpreadFault03: instances that are created one at a time are not all placed on the first
// node.
func TestSpreadFault03(t *testing.T) {
	h := newHarness(t)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		h.join(name)
	}
	c := h.joinController(1, names...)
	c.synced()
	h.settle()
	got := map[string]int{}
	for i := range 20 {
		c.pending(fmt.Sprint(i))
		h.settle()
		for _, node := range c.ackAll(c.news()) {
			got[node]++
		}
	}
	if diff := cmp.Diff(map[string]int{"a": 5, "b": 5, "c": 5, "d": 5}, got); diff != "" {
		t.Errorf("instances per node (-want +got):\n%s", diff)
	}
}

// TestStopFault04: a stop order goes to the node that has the instance, not to the first node.
// It is repeated until that node confirms.
func TestStopFault04(t *testing.T) {
	h := newHarness(t)
	nodes := map[string]*workerPeer{}
	for _, name := range []string{"a", "b", "c"} {
		nodes[name] = h.join(name)
	}
	c := h.joinController(1, "a", "b", "c")
	c.synced()
	h.settle()
	c.pending("1", "2", "3", "4", "5", "6")
	h.settle()
	where := c.ackAll(c.news())
	h.settle()
	for _, w := range nodes {
		w.orders()
	}
	owner := where["4"]
	c.stop("4")
	h.settle()
	for name, w := range nodes {
		stop := w.orders().stops["4"]
		if (stop != nil) != (name == owner) {
			t.Errorf("node %s got stop %v; the owner is %s", name, stop, owner)
		}
		if stop != nil && (stop.GraceSeconds != 7 || stop.Force) {
			t.Errorf("stop = %v, want 7 s of grace", stop)
		}
	}
	// The owner disconnects before it confirms, and receives the order again.
	nodes[owner].close()
	h.settle()
	w := h.join(owner, "4")
	h.settle()
	got := w.orders()
	if want := []string{"admitted", "allowed", "stop"}; !slices.Equal(got.first, want) {
		t.Errorf("orders after the owner came back = %v, want %v", got.first, want)
	}
	if got.stops["4"] == nil || got.stops["4"].Force {
		t.Errorf("stop after the owner came back = %v, want the polite one again", got.stops["4"])
	}
	if runs, listed := got.allowed["4"]; !listed || runs {
		t.Errorf("full set has 4 as %v, %v, want it as one not to start", runs, listed)
	}
	w.observe("4", 9, rikv1alpha1.InstanceTerminated)
	h.settle()
	if o := c.news().observations["4"]; o == nil || o.Phase != "Terminated" {
		t.Errorf("observation = %v, want Terminated", o)
	}
	w.close()
	h.settle()
	w = h.join(owner)
	h.settle()
	got = w.orders()
	if _, listed := got.allowed["4"]; listed || got.stops["4"] != nil {
		t.Errorf("orders after the confirmation = %+v, want nothing of 4", got)
	}
}

// TestUnknownInstanceFault02: a message about an unknown instance does not end a stream or the
// scheduler.
func TestUnknownInstanceFault02(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.synced()
	c.ack("ghost", true)
	c.ack("ghost", false)
	c.stop("ghost")
	c.gone("ghost")
	c.send(&schedulerv1.SyncRequest{})
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Node{Node: &schedulerv1.Node{Name: "n", Object: []byte("\xff")}}})
	node.observe("ghost", 1, rikv1alpha1.InstanceRunning)
	node.send(&schedulerv1.WorkerMessage{})
	h.settle()
	got := node.orders()
	if stop := got.stops["ghost"]; stop == nil || !stop.Force || got.acks["ghost"] != 1 {
		t.Errorf("orders = %+v, want the unknown instance stopped and the observation acknowledged", got)
	}
	node.observe("ghost", 2, rikv1alpha1.InstanceTerminated)
	c.pending("x")
	h.settle()
	sent := c.news()
	if o := sent.observations["ghost"]; o == nil || o.Phase != "Terminated" {
		t.Errorf("observation = %v, want the confirmation, for a tombstone", o)
	}
	if sent.bindings["x"] != "a" || c.ended() != nil || node.ended() != nil {
		t.Errorf("after all that: bindings %v, streams ended with %v, %v", sent.bindings, c.ended(), node.ended())
	}
}

func TestForeignObservationIsNotForwarded(t *testing.T) {
	h := newHarness(t)
	h.join("owner")
	thief := h.join("thief")
	c := h.joinController(1, "owner", "thief")
	c.bound("x", "owner")
	c.synced()
	h.settle()
	c.take()
	thief.observe("x", 50, rikv1alpha1.InstanceFailed)
	h.settle()
	if o := c.news().observations["x"]; o != nil {
		t.Errorf("the controller received %v from a node that does not have the instance", o)
	}
	if stop := thief.orders().stops["x"]; stop == nil || !stop.Force {
		t.Errorf("stop = %v, want the thief to stop it", stop)
	}
}

// TestRestartFault07: a restarted scheduler rebuilds its state from the controller and the
// nodes. No instance is started twice, lost or left over.
func TestRestartFault07(t *testing.T) {
	h := newHarness(t)
	h.join("a")
	c := h.joinController(1, "a", "b")
	c.synced()
	c.pending("kept", "unacknowledged")
	h.settle()
	c.news()
	c.ack("kept", true)
	h.settle()
	h.stop()
	c.close()

	h.start()
	// The binding of "written" was made durable and its acknowledgment was lost. Only the node
	// has "orphan".
	node := h.join("a", "kept", "orphan")
	h.settle()
	node.observe("kept", 4, rikv1alpha1.InstanceRunning)
	h.settle()
	if got := node.orders(); !slices.Equal(got.first, []string{"admitted"}) || len(got.acks) != 0 {
		t.Fatalf("orders before the listing = %+v, want admitted alone", got)
	}
	c = h.joinController(1, "a", "b")
	c.bound("kept", "a")
	c.bound("written", "a")
	c.pending("unacknowledged")
	h.settle()
	if got := c.news(); len(got.bindings) != 0 {
		t.Fatalf("placed during the listing: %v", got.bindings)
	}
	c.synced()
	h.settle()
	got := node.orders()
	if diff := cmp.Diff(map[string]bool{"kept": true, "written": true}, got.allowed); diff != "" {
		t.Errorf("full set (-want +got):\n%s", diff)
	}
	sent := c.news()
	if sent.bindings["unacknowledged"] != "a" {
		t.Errorf("bindings = %v, want the proposal made again", sent.bindings)
	}
	if o := sent.observations["kept"]; o == nil || o.Sequence != 4 || got.acks["kept"] != 4 {
		t.Errorf("observation made during the listing = %v, acks %v, want it sent and acknowledged", o, got.acks)
	}
}

// TestControllerRestartFault07: a new controller receives again the observations that its
// predecessor may not have written.
func TestControllerRestartFault07(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.bound("x", "a")
	c.bound("y", "a")
	c.synced()
	h.settle()
	node.observe("x", 5, rikv1alpha1.InstanceRunning)
	h.settle()
	if o := c.news().observations["x"]; o == nil {
		t.Fatal("observation was not sent")
	}
	c.close()
	h.settle()
	node.observe("x", 6, rikv1alpha1.InstanceFailed)
	h.settle()
	node.orders()
	c = h.joinController(2, "a")
	c.bound("x", "a")
	c.synced()
	h.settle()
	sent := c.news()
	if o := sent.observations["x"]; o == nil || o.Sequence != 6 {
		t.Errorf("observation = %v, want sequence 6", o)
	}
	if r := sent.nodes["a"]; r == nil || !r.Connected || len(r.Info) == 0 {
		t.Errorf("report = %v, want the connected node in full", r)
	}
	got := node.orders()
	if diff := cmp.Diff(map[string]bool{"x": true}, got.allowed); diff != "" || got.lastTerm != 2 || got.acks["x"] != 6 {
		t.Errorf("orders = %+v, want x alone, of term 2, and an acknowledgement", got)
	}
}

func TestTerminatedInstanceIsNotStartedAgain(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.bound("x", "a")
	c.synced()
	c.stop("x")
	h.settle()
	node.observe("x", 3, rikv1alpha1.InstanceTerminated)
	h.settle()
	node.orders()
	// The next controller lists the instance before it has written that the instance is gone.
	c = h.joinController(2, "a")
	c.bound("x", "a")
	c.synced()
	c.bound("x", "a")
	h.settle()
	got := node.orders()
	if _, listed := got.allowed["x"]; listed || got.runs["x"] {
		t.Errorf("orders = %+v, want nothing of x", got)
	}
	if o := c.news().observations["x"]; o == nil || o.Phase != "Terminated" {
		t.Errorf("observation = %v, want Terminated", o)
	}
}

func TestForcedEndIsCarriedOutWhenTheNodeComesBack(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.bound("gone", "a")
	c.bound("stays", "a")
	c.synced()
	h.settle()
	node.close()
	h.settle()
	c.gone("gone")
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Tombstone{
		Tombstone: &schedulerv1.Tombstone{Uid: "buried"},
	}})
	h.settle()
	node = h.join("a", "gone", "stays", "buried")
	h.settle()
	got := node.orders()
	if diff := cmp.Diff(map[string]bool{"stays": true}, got.allowed); diff != "" {
		t.Errorf("full set (-want +got):\n%s", diff)
	}
	for _, uid := range []string{"gone", "buried"} {
		if stop := got.stops[uid]; stop == nil || !stop.Force {
			t.Errorf("stop of %s = %v, want a forced one", uid, stop)
		}
		node.observe(uid, 1, rikv1alpha1.InstanceTerminated)
	}
	h.settle()
	node.close()
	h.settle()
	node = h.join("a", "stays")
	h.settle()
	if got = node.orders(); len(got.stops) != 0 {
		t.Errorf("stops after the confirmation = %v, want none", got.stops)
	}
}

func TestStopOfAProposalWaitsForTheAcknowledgement(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.synced()
	c.pending("x")
	h.settle()
	c.stop("x")
	h.settle()
	if got := node.orders(); got.stops["x"] != nil {
		t.Errorf("stop before the acknowledgement = %v", got.stops["x"])
	}
	c.ack("x", true)
	h.settle()
	got := node.orders()
	if stop := got.stops["x"]; got.runs["x"] || stop == nil || !stop.Force {
		t.Errorf("orders = %+v, want no run and a stop that is confirmed by a node that never had it", got)
	}
}
