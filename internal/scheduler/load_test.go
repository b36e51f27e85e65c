package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/scheduler/validate"
)

// TestSlowNodeDelaysNoOther: a node that does not read receives no more than its flow control
// windows hold. Other nodes receive their orders.
func TestSlowNodeDelaysNoOther(t *testing.T) {
	h := newHarness(t)
	slow := h.connect(register(t, "slow"))
	lively := h.join("lively")
	c := h.joinController(1, "slow", "lively")
	c.synced()
	h.settle()
	const n = 2000
	for i := range n {
		in := instanceOf(fmt.Sprintf("slow-%d-%s", i, strings.Repeat("x", 1000)), "slow")
		c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Bound{Bound: in}})
		c.bound(fmt.Sprint("lively-", i), "lively")
	}
	h.settle()
	if got := len(lively.orders().runs); got != n {
		t.Fatalf("the lively node got %d orders, want %d", got, n)
	}
	slow.listen()
	h.settle()
	if got := len(slow.orders().runs); got != n {
		t.Errorf("the slow node got %d orders once it read, want %d", got, n)
	}
}

// TestSlowControllerCoalesces: while the controller does not read, a newer observation of an
// instance replaces the older one.
func TestSlowControllerCoalesces(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.controller(1)
	c.node("a")
	c.template("ns/w", &rikv1alpha1.InstanceTemplate{})
	c.bound("x", "a")
	c.synced()
	h.settle()
	const n = 5000
	for i := range n {
		node.send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Observation{Observation: &schedulerv1.Observation{
			Uid: "x", Sequence: int64(i + 1), Phase: "Running", Message: strings.Repeat("m", 1000),
		}}})
	}
	h.settle()
	h.s.mu.Lock()
	waiting := h.s.controller.out.waiting()
	h.s.mu.Unlock()
	if waiting > 2 {
		t.Errorf("%d messages wait for the controller, want the last observation alone", waiting)
	}
	c.listen()
	h.settle()
	if o := c.news().observations["x"]; o == nil || o.Sequence != n {
		t.Errorf("last observation = %v, want sequence %d", o.GetSequence(), n)
	}
	if acks := node.orders().acks; acks["x"] != n {
		t.Errorf("acknowledged %v, want up to %d", acks, n)
	}
}

// TestAnEndlessObservationIsCut: the observation of one instance is cut to a size that fits
// into an object.
func TestAnEndlessObservationIsCut(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.bound("x", "a")
	c.synced()
	h.settle()
	node.send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Observation{Observation: &schedulerv1.Observation{
		Uid: "x", Sequence: 1, Phase: "Running", Message: strings.Repeat("m", 5<<20), Status: make([]byte, 5<<20),
	}}})
	h.settle()
	o := c.news().observations["x"]
	if o == nil || o.Phase != "Running" || len(o.Message) > validate.MaxText+3 || o.Status != nil {
		t.Errorf("the controller received a message of %d bytes and %d of details", len(o.GetMessage()), len(o.GetStatus()))
	}
	if acks := node.orders().acks; acks["x"] != 1 {
		t.Errorf("acknowledged %v, want it all the same", acks)
	}
}

// explainedAgain is long enough for the scheduler to send a changed explanation, and too short
// for a node to be lost.
const explainedAgain = 10 * time.Second

func TestThousandsArePlacedAndLeftoversExplained(t *testing.T) {
	h := newHarness(t)
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("n%d", i))
		h.join(names[i])
	}
	c := h.joinController(1, names...)
	c.synced()
	h.settle()
	for i := range 1200 {
		c.pending(fmt.Sprintf("%04d", i))
	}
	h.settle()
	sent := c.news()
	where := c.ackAll(sent)
	per := map[string]int{}
	for _, node := range where {
		per[node]++
	}
	if len(where) != 1000 || len(sent.unplaced) != 200 || slices.Max(slices.Collect(maps.Values(per))) != 100 {
		t.Fatalf("placed %d, unplaced %d, per node %v, want 1000, 200 and 100", len(where), len(sent.unplaced), per)
	}
	for uid, reason := range sent.unplaced {
		if reason != "InsufficientCPU" || where[uid] != "" {
			t.Fatalf("%s: reason %s, node %q", uid, reason, where[uid])
		}
	}
	// There is room for one more instance. The instance that has waited longest gets it, without
	// polling.
	c.gone("0000")
	h.settle()
	if got := c.news().bindings; len(got) != 1 {
		t.Errorf("bindings after one went = %v, want one", got)
	}
	h.later(explainedAgain)
	h.settle()
	if got := c.news(); len(got.unplaced) != 0 {
		t.Errorf("%d explanations were sent again without a change", len(got.unplaced))
	}
}

func TestPreemptionIsReportedAndServed(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.template("ns/urgent", &rikv1alpha1.InstanceTemplate{Priority: 10, Containers: []rikv1alpha1.Container{{
		Name: "main", Resources: rikv1alpha1.Resources{
			Requests: rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("1")},
		},
	}}})
	for i := range 100 {
		c.bound(fmt.Sprintf("%03d", i), "a")
	}
	c.synced()
	in := instanceOf("urgent", "")
	in.Workload, in.Revision = "urgent", "urgent"
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Pending{Pending: in}})
	h.settle()
	displaced := c.news().displaced
	if len(displaced) != 1 {
		t.Fatalf("displaced = %v, want one", displaced)
	}
	for victim, by := range displaced {
		if by != "urgent" {
			t.Errorf("%s is displaced for %s, want urgent", victim, by)
		}
		c.stop(victim)
		h.settle()
		node.observe(victim, 1, rikv1alpha1.InstanceTerminated)
	}
	h.settle()
	if got := c.news().bindings["urgent"]; got != "a" {
		t.Errorf("urgent is bound to %q, want a", got)
	}
}

// TestUsedPorts: a port in use on a node's machine rejects instances that need the port, until
// it is free.
func TestUsedPorts(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.template("ns/web", &rikv1alpha1.InstanceTemplate{Containers: []rikv1alpha1.Container{{
		Name: "main", Image: "img", Ports: []rikv1alpha1.Port{{Port: 8080, Type: rikv1alpha1.PortNodePort}},
	}}})
	c.synced()
	beat := func(ports ...*schedulerv1.UsedPort) {
		node.send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Heartbeat{Heartbeat: &schedulerv1.Heartbeat{
			UsedPorts: ports, UsedPortsChanged: true,
		}}})
		h.settle()
	}
	beat(&schedulerv1.UsedPort{Protocol: "TCP", Port: 8080})
	web := instanceOf("x", "")
	web.Workload, web.Revision = "web", "web"
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Pending{Pending: web}})
	h.settle()
	e, err := c.client.Explain(t.Context(), &schedulerv1.ExplainRequest{Uid: "x"})
	if got := c.news().unplaced["x"]; got != "HostPortTaken" || err != nil || !strings.Contains(e.Summary, "8080/TCP on a") {
		t.Errorf("unplaced = %q, %v, %v, want the port to be named", got, e, err)
	}
	// A port in use at loopback addresses only does not reject instances.
	beat(&schedulerv1.UsedPort{Protocol: "TCP", Port: 8080, HostNetworkOnly: true})
	if got := c.news().bindings["x"]; got != "a" {
		t.Errorf("x is on %q, want a: the port is free", got)
	}
}

// TestNodeWithoutNetworkServesNoPorts: a node without a network gets no instances with ports
// until it joins with a network. A node that does not report this field has a network.
func TestNodeWithoutNetworkServesNoPorts(t *testing.T) {
	h := newHarness(t)
	r := register(t, "a")
	r.NoNetwork = true
	node := h.connect(r)
	node.listen()
	c := h.joinController(1, "a")
	c.template("ns/web", &rikv1alpha1.InstanceTemplate{Containers: []rikv1alpha1.Container{{
		Name: "main", Image: "img", Ports: []rikv1alpha1.Port{{Port: 8080}},
	}}})
	c.synced()
	web := instanceOf("x", "")
	web.Workload, web.Revision = "web", "web"
	c.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Pending{Pending: web}})
	c.pending("y")
	h.settle()
	e, err := c.client.Explain(t.Context(), &schedulerv1.ExplainRequest{Uid: "x"})
	if err != nil || len(e.Nodes) != 1 || e.Nodes[0].RejectedBy != "Network" {
		t.Errorf("Explain(x) = %v, %v, want a rejected by Network", e, err)
	}
	if sent := c.news(); sent.unplaced["x"] != "NodesWithoutNetwork" || sent.bindings["y"] != "a" {
		t.Errorf("sent %+v, want x unplaced and y, which serves nothing, on a", sent)
	}
	node.close()
	h.settle()
	h.join("a")
	h.settle()
	if got := c.news().bindings["x"]; got != "a" {
		t.Errorf("x is on %q, want a: it has a network now", got)
	}
}

func TestHeartbeatNews(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	other := h.join("b")
	c := h.joinController(1, "a", "b")
	c.synced()
	h.settle()
	c.news()
	node.send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Heartbeat{Heartbeat: &schedulerv1.Heartbeat{
		DiskPressure: true,
	}}})
	other.send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Heartbeat{Heartbeat: &schedulerv1.Heartbeat{
		ImagesChanged: true, Images: []string{"img"},
	}}})
	h.settle()
	r := c.news().nodes["a"]
	if r == nil || !r.Connected || !r.DiskPressure {
		t.Errorf("report = %v, want disk pressure", r)
	}
	c.pending("x")
	h.settle()
	if got := c.news().bindings["x"]; got != "b" {
		t.Errorf("x is on %q, want b: a is under disk pressure", got)
	}
	e, err := c.client.Explain(t.Context(), &schedulerv1.ExplainRequest{Uid: "x"})
	if err != nil || e.NodeName != "b" || e.Nodes[0].RejectedBy != "DiskPressure" || e.Nodes[1].Scores["ImageLocality"] == 0 {
		t.Errorf("Explain() = %v, %v, want a rejected and b scored for its image", e, err)
	}
	if _, err := c.client.Explain(t.Context(), &schedulerv1.ExplainRequest{Uid: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("Explain(unknown) = %v, want NotFound", err)
	}
}

// TestNodesInTroubleTakeNothing: nodes in trouble get no instances until they report that the
// trouble is over. The controller receives both reports.
func TestNodesInTroubleTakeNothing(t *testing.T) {
	h := newHarness(t)
	node := h.join("a")
	c := h.joinController(1, "a")
	c.synced()
	beat := func(all ...*schedulerv1.NodeTrouble) {
		node.send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Heartbeat{Heartbeat: &schedulerv1.Heartbeat{Troubles: all}}})
		h.settle()
	}
	beat(&schedulerv1.NodeTrouble{Kind: "names", Message: "port 53 is taken"}, &schedulerv1.NodeTrouble{Kind: "nonsense"})
	c.pending("x")
	h.settle()
	if got := c.news().unplaced["x"]; got != "NodeNetworkUnavailable" {
		t.Errorf("unplaced = %q, want the node's network as the reason", got)
	}
	beat(&schedulerv1.NodeTrouble{Kind: "names-blocked", Message: "a firewall"})
	if got := c.news().bindings["x"]; got != "" {
		t.Errorf("x is on %q, where names are not answered to instances", got)
	}
	// A conflict of ports does not reject instances.
	beat(&schedulerv1.NodeTrouble{Kind: "ports", Message: "TCP 30080"})
	if got := c.news().bindings["x"]; got != "a" {
		t.Errorf("x is on %q, want a: the trouble is over", got)
	}
	got := troubles(troublesOf([]*schedulerv1.NodeTrouble{{Kind: "ports", Message: strings.Repeat("x", 5000)}, {Kind: "nonsense"}, {Kind: "network"}}))
	if len(got) != 2 || got[0].Kind != "network" || len(got[1].Message) != maxTrouble {
		t.Errorf("what is passed on: %v, want two troubles of bounded size", got)
	}
}

// TestOverlayTrouble: instances go to nodes that receive packets from other nodes. If no node
// does, instances go to nodes with overlay trouble, because they could not be placed otherwise.
func TestOverlayTrouble(t *testing.T) {
	h := newHarness(t)
	blocked := &schedulerv1.NodeTrouble{Kind: "overlay", Message: "no packet arrives"}
	join := func(name string, trouble *schedulerv1.NodeTrouble) *workerPeer {
		r := register(t, name)
		r.Troubles = []*schedulerv1.NodeTrouble{trouble}
		node := h.connect(r)
		node.listen()
		return node
	}
	a, b := join("a", blocked), join("b", &schedulerv1.NodeTrouble{Kind: "network", Message: "not set up yet"})
	c := h.joinController(1, "a", "b")
	c.synced()
	beat := func(node *workerPeer, all ...*schedulerv1.NodeTrouble) {
		node.send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Heartbeat{Heartbeat: &schedulerv1.Heartbeat{Troubles: all}}})
		h.settle()
	}
	placed := func(uid, want string) {
		t.Helper()
		c.pending(uid)
		h.settle()
		if got := c.news().bindings[uid]; got != want {
			t.Errorf("%s is on %q, want %q", uid, got, want)
		}
	}
	placed("w", "a") // there is no better node
	beat(b)
	for _, uid := range []string{"x1", "x2", "x3"} {
		placed(uid, "b") // even if a has fewer instances
	}
	beat(b, blocked)
	placed("y", "a")
	beat(a)
	placed("z", "a")
}
