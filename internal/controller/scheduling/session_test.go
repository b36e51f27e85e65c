package scheduling

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/instance"
	"rik.dev/rik/internal/controller/node"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// timeout bounds a wait. It is not part of a measurement.
const timeout = time.Minute

// recorder is a scheduler that only receives. It passes each stream to the test.
type recorder struct {
	schedulerv1.UnimplementedSchedulerServer
	streams chan *seen
	says    *schedulerv1.SyncResponse // sent first; may be nil
}

type seen struct {
	requests chan *schedulerv1.SyncRequest
	end      chan struct{}
}

func (r *recorder) Sync(stream grpc.BidiStreamingServer[schedulerv1.SyncRequest, schedulerv1.SyncResponse]) error {
	h := &seen{requests: make(chan *schedulerv1.SyncRequest, 1000), end: make(chan struct{})}
	r.streams <- h
	if r.says != nil {
		if err := stream.Send(r.says); err != nil {
			return err
		}
	}
	received := make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			h.requests <- m
		}
	}()
	select {
	case <-h.end:
		return io.ErrUnexpectedEOF
	case err := <-received:
		return err
	}
}

// ignore is a Sink that ignores all messages.
type ignore struct{}

func (ignore) SessionBegan()                           {}
func (ignore) Welcomed()                               {}
func (ignore) SessionEnded()                           {}
func (ignore) Bind(types.UID, instance.Binding)        {}
func (ignore) Explain(types.UID, instance.Unplaced)    {}
func (ignore) Observe(types.UID, instance.Observation) {}
func (ignore) Displace(types.UID, types.UID)           {}
func (ignore) Report(string, node.Report)              {}

// fixture is a client with its views, connected to a recorder.
type fixture struct {
	*testing.T
	client    *Client
	instances *index.Instances
	nodes     *index.Objects[*rikv1alpha1.Node]
	revisions *index.Objects[*rikv1alpha1.WorkloadRevision]
	recorder  *recorder
}

func fix(t *testing.T, tombstones ...instance.Tombstone) *fixture {
	f := &fixture{
		T: t, instances: index.NewInstances(), nodes: index.NewObjects[*rikv1alpha1.Node](),
		revisions: index.NewObjects[*rikv1alpha1.WorkloadRevision](), recorder: &recorder{streams: make(chan *seen, 10)},
	}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	schedulerv1.RegisterSchedulerServer(server, f.recorder)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	f.client = New(Config{
		Dial: func(context.Context) (*grpc.ClientConn, error) {
			return grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		},
		Identity: "test", Term: 7, Instances: f.instances, Nodes: f.nodes, Revisions: f.revisions,
		Tombstones: func() []instance.Tombstone { return tombstones }, DeletedNodes: func() []types.UID { return nil }, Active: func() error { return nil },
		Sink: ignore{}, Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(),
	})
	return f
}

func (f *fixture) run() {
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan error, 1)
	go func() { done <- f.client.Run(ctx) }()
	f.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.Errorf("Run = %v", err)
		}
	})
}

func (f *fixture) stream() *seen {
	f.Helper()
	select {
	case h := <-f.recorder.streams:
		return h
	case <-time.After(timeout):
		f.Fatal("no stream was opened")
		return nil
	}
}

// until collects the received messages up to and including the first whose text has the prefix
// last.
func (f *fixture) until(h *seen, last string) []string {
	f.Helper()
	var out []string
	for {
		select {
		case m := <-h.requests:
			out = append(out, text(m))
			if strings.HasPrefix(out[len(out)-1], last) {
				return out
			}
		case <-time.After(timeout):
			f.Fatalf("%q was not sent, only %q", last, out)
		}
	}
}

func text(m *schedulerv1.SyncRequest) string {
	switch {
	case m.GetHello() != nil:
		return "hello"
	case m.GetNode() != nil:
		return "node " + m.GetNode().GetName()
	case m.GetNodeGone() != nil:
		return "node gone " + m.GetNodeGone().GetName()
	case m.GetTemplate() != nil:
		return "template " + m.GetTemplate().GetRevision()
	case m.GetTemplateGone() != nil:
		return "template gone " + m.GetTemplateGone().GetRevision()
	case m.GetPending() != nil:
		return "pending " + m.GetPending().GetUid()
	case m.GetBound() != nil:
		out := "bound " + m.GetBound().GetUid() + " " + m.GetBound().GetNodeName()
		if m.GetBound().GetEnded() {
			out += " ended"
		}
		return out
	case m.GetGone() != nil:
		return "gone " + m.GetGone().GetUid()
	case m.GetAck() != nil:
		if m.GetAck().GetDurable() {
			return "ack " + m.GetAck().GetUid()
		}
		return "nack " + m.GetAck().GetUid()
	case m.GetStop() != nil:
		if m.GetStop().GetForce() {
			return "stop by force " + m.GetStop().GetUid()
		}
		return "stop " + m.GetStop().GetUid()
	case m.GetSynced() != nil:
		return "synced"
	case m.GetTombstone() != nil:
		return "tombstone " + m.GetTombstone().GetUid()
	default:
		return "?"
	}
}

func (f *fixture) want(got []string, want ...string) {
	f.Helper()
	if !slices.Equal(got, want) {
		f.Errorf("told %q, want %q", got, want)
	}
}

func object(uid, version, node string, changes ...func(*rikv1alpha1.Instance)) *rikv1alpha1.Instance {
	in := &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "i" + uid, UID: types.UID(uid), ResourceVersion: version,
			Finalizers: []string{rikv1alpha1.FinalizerNode},
		},
		Spec:   rikv1alpha1.InstanceSpec{Workload: "w", Revision: "r", NodeName: node},
		Status: rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceRunning},
	}
	for _, c := range changes {
		c(in)
	}
	return in
}

func deleting(grace int64) func(*rikv1alpha1.Instance) {
	return func(in *rikv1alpha1.Instance) {
		in.DeletionTimestamp, in.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(1, 0)}, &grace
		in.Status.Phase = rikv1alpha1.InstanceDestroying
	}
}

func ending(in *rikv1alpha1.Instance) {
	in.Status.Phase, in.Status.FinishedAt = rikv1alpha1.InstanceCompleted, &metav1.Time{Time: time.Unix(1, 0)}
}

func (f *fixture) revision(name, version string) {
	f.revisions.Observe(&rikv1alpha1.WorkloadRevision{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: version,
	}})
}

func (f *fixture) node(name, version string, change func(*rikv1alpha1.Node)) {
	n := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
	if change != nil {
		change(n)
	}
	f.nodes.Observe(n)
}

// TestListing: a listing sends every object once, and each after the objects to which it
// refers.
func TestListing(t *testing.T) {
	t.Parallel()
	f := fix(t, instance.Tombstone{UID: "dead", Node: "n"})
	f.node("n", "1", nil)
	f.revision("r", "2")
	f.instances.Observe(object("1", "3", ""))
	f.instances.Observe(object("2", "4", "n"))
	f.instances.Observe(object("3", "5", "n", ending))
	f.instances.Observe(object("4", "6", "n", deleting(30)))
	f.instances.Observe(object("5", "7", "", deleting(30)))
	f.run()
	got := f.until(f.stream(), "synced")
	for _, order := range [][2]string{
		{"hello", "node n"}, {"node n", "template ns/r"},
		{"template ns/r", "pending 1"}, {"template ns/r", "bound 2 n"}, {"template ns/r", "bound 3 n ended"},
		{"bound 4 n", "stop 4"}, {"stop 4", "tombstone dead"}, {"tombstone dead", "synced"},
	} {
		a, b := slices.Index(got, order[0]), slices.Index(got, order[1])
		if a < 0 || b < 0 || a > b {
			t.Errorf("%q is not before %q in %q", order[0], order[1], got)
		}
	}
	if len(got) != 10 {
		t.Errorf("sent %q, want ten messages", got)
	}
}

// TestChanges: only changes are sent.
func TestChanges(t *testing.T) {
	t.Parallel()
	f := fix(t)
	f.run()
	h := f.stream()
	f.want(f.until(h, "synced"), "hello", "synced")

	f.node("n", "1", nil)
	f.want(f.until(h, "node"), "node n")
	// An instance whose revision has not arrived yet waits for it.
	f.instances.Observe(object("1", "3", ""))
	f.revision("r", "2")
	f.want(f.until(h, "pending"), "template ns/r", "pending 1")
	// A binding is reported only by its acknowledgment.
	f.client.Acknowledge("1", "n", true)
	f.instances.Put(object("1", "5", "n"))
	f.want(f.until(h, "ack"), "ack 1")
	// A node's status is not sent. A status without meaning for the scheduler is not sent either.
	f.instances.Observe(object("1", "6", "n", func(in *rikv1alpha1.Instance) { in.Status.Ready = true }))
	f.node("n", "7", func(n *rikv1alpha1.Node) { n.Status.Info.Hostname = "x" })
	f.node("n", "8", func(n *rikv1alpha1.Node) { n.Spec.Unschedulable = true })
	f.want(f.until(h, "node"), "node n")
	f.instances.Observe(object("1", "9", "n", ending))
	f.want(f.until(h, "bound"), "bound 1 n ended")
	// A deletion does not report the ended instance as running. It is sent once for each
	// combination of grace period and force.
	end := func(in *rikv1alpha1.Instance) { ending(in); deleting(30)(in) }
	f.instances.Observe(object("1", "10", "n", end))
	f.want(f.until(h, "stop"), "stop 1")
	f.instances.Observe(object("1", "11", "n", end, func(in *rikv1alpha1.Instance) { in.Labels = map[string]string{"a": "b"} }))
	f.instances.Observe(object("1", "12", "n", end, deleting(0)))
	f.want(f.until(h, "stop"), "stop by force 1")
	f.instances.Remove(object("1", "13", "n"))
	f.want(f.until(h, "gone"), "gone 1")
	f.node("n", "14", func(n *rikv1alpha1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} })
	f.want(f.until(h, "node gone"), "node gone n")
	f.revisions.Remove(&rikv1alpha1.WorkloadRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r", UID: "r", ResourceVersion: "15"}})
	f.want(f.until(h, "template gone"), "template gone ns/r")
}

// TestTheLargestMessageOfANodeDoesNotEndTheSession: the largest message that the scheduler accepts from a node
// does not end the session.
func TestTheLargestMessageOfANodeDoesNotEndTheSession(t *testing.T) {
	f := fix(t)
	seen := reported{nodes: make(chan string, 1)}
	f.client.config.Sink = seen
	f.recorder.says = &schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Node{
		Node: &schedulerv1.NodeReport{Name: "a", Troubles: []*schedulerv1.NodeTrouble{{Kind: "network", Message: strings.Repeat("m", 16<<20)}}},
	}}
	f.run()
	select {
	case name := <-seen.nodes:
		if name != "a" {
			t.Errorf("received node %q, want a", name)
		}
	case <-time.After(timeout):
		t.Fatal("the largest message of a node was not received")
	}
}

// reported records the names of reported nodes.
type reported struct {
	ignore
	nodes chan string
}

func (r reported) Report(name string, _ node.Report) { r.nodes <- name }

// TestRefusal: after a refused binding, the scheduler receives the instance again.
func TestRefusal(t *testing.T) {
	t.Parallel()
	f := fix(t)
	f.revision("r", "1")
	f.instances.Observe(object("1", "2", ""))
	f.run()
	h := f.stream()
	f.until(h, "synced")
	f.client.Acknowledge("1", "m", false)
	f.want(f.until(h, "pending"), "nack 1", "pending 1")
	f.client.Acknowledge("unknown", "m", false)
	f.want(f.until(h, "nack"), "nack unknown")
}

// TestReconnectFault07: after the loss of the scheduler the full state is sent again.
// Acknowledgments of an earlier session's proposals are not sent.
func TestReconnectFault07(t *testing.T) {
	t.Parallel()
	f := fix(t)
	f.revision("r", "1")
	f.instances.Observe(object("1", "2", ""))
	f.run()
	h := f.stream()
	f.until(h, "synced")
	close(h.end)
	second := f.stream()
	f.want(f.until(second, "synced"), "hello", "template ns/r", "pending 1", "synced")
	close(second.end)
	f.client.Acknowledge("1", "n", true)
	third := f.stream()
	if got := f.until(third, "synced"); !slices.Contains(got, "pending 1") {
		t.Errorf("told %q", got)
	}
}
