package controller_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// scripted is a scheduler with nodes. It is the real generated server, and a test decides its
// messages. Instances on the nodes outlive its streams, as in a cluster.
type scripted struct {
	schedulerv1.UnimplementedSchedulerServer

	mu sync.Mutex
	// mu guards the fields below.
	session    *syncSession
	term       int64
	sessions   int
	synced     bool
	nodes      map[string]bool // connected
	objects    map[string]bool // Nodes that the controller sent
	pending    map[string]*schedulerv1.Instance
	bound      map[string]string // uid -> node, as sent by the controller
	proposed   map[string]string // uid -> node
	running    map[string]string // uid -> node that really runs it
	sequence   map[string]int64
	starts     map[string]int
	tombstoned map[string]string
	stops      map[string]*schedulerv1.Stop
	templates  map[string]bool
	hold       bool // propose nothing
	next       int
	address    string // of every instance
	// holds maps nodes to the confirmations that they wait for. confirmed holds the confirmations
	// in the controller's Nodes. deleted holds the Nodes that the controller reported as deleted.
	holds     map[string]*schedulerv1.Hold
	confirmed map[string]string
	deleted   map[string]bool
	cluster   string
}

type syncSession struct {
	out  chan *schedulerv1.SyncResponse
	done chan struct{}
	// cut ends the stream from the scheduler's side.
	cut chan struct{}
}

func newScripted(nodes ...string) *scripted {
	s := &scripted{
		nodes: map[string]bool{}, objects: map[string]bool{}, templates: map[string]bool{},
		pending: map[string]*schedulerv1.Instance{}, bound: map[string]string{}, proposed: map[string]string{},
		running: map[string]string{}, sequence: map[string]int64{}, starts: map[string]int{},
		tombstoned: map[string]string{}, stops: map[string]*schedulerv1.Stop{}, address: "10.0.0.1",
		holds: map[string]*schedulerv1.Hold{}, confirmed: map[string]string{}, deleted: map[string]bool{},
	}
	for _, n := range nodes {
		s.nodes[n] = true
	}
	return s
}

// serve runs a server in memory and returns a function that dials it. stop ends the server as a
// crash would.
func (s *scripted) serve(tb testing.TB) (dial func(context.Context) (*grpc.ClientConn, error), stop func()) {
	tb.Helper()
	var mu sync.Mutex
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	schedulerv1.RegisterSchedulerServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	stopped := false
	stop = func() {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		stopped = true
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			tb.Errorf("serving the scripted scheduler: %v", err)
		}
	}
	tb.Cleanup(stop)
	dial = func(context.Context) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///scheduler",
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	}
	return dial, stop
}

func (s *scripted) Sync(stream grpc.BidiStreamingServer[schedulerv1.SyncRequest, schedulerv1.SyncResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	session := &syncSession{out: make(chan *schedulerv1.SyncResponse, 10_000), done: make(chan struct{}), cut: make(chan struct{})}
	s.mu.Lock()
	if first.GetHello() == nil || first.GetHello().GetTerm() < s.term {
		s.mu.Unlock()
		return status.Error(codes.FailedPrecondition, "an old term")
	}
	s.term, s.session, s.synced, s.cluster = first.GetHello().GetTerm(), session, false, first.GetHello().GetCluster()
	s.sessions++
	s.pending, s.proposed = map[string]*schedulerv1.Instance{}, map[string]string{}
	s.bound, s.objects, s.templates = map[string]string{}, map[string]bool{}, map[string]bool{}
	s.say(&schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Welcome{Welcome: &schedulerv1.Welcome{}}})
	s.mu.Unlock()
	failed := make(chan error, 1)
	go func() {
		defer close(session.done)
		for {
			m, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			s.record(m)
		}
	}()
	for {
		select {
		case m := <-session.out:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-session.cut:
			return status.Error(codes.Unavailable, "cut by the test")
		case err := <-failed:
			return err
		}
	}
}

func (s *scripted) Explain(_ context.Context, r *schedulerv1.ExplainRequest) (*schedulerv1.Explanation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	node, ok := s.bound[r.GetUid()]
	if !ok {
		return nil, status.Error(codes.NotFound, "unknown instance")
	}
	return &schedulerv1.Explanation{NodeName: node, Summary: "it is on " + node}, nil
}

func (s *scripted) record(m *schedulerv1.SyncRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.GetNode() != nil:
		s.objects[m.GetNode().GetName()] = true
		object := &rikv1alpha1.Node{}
		if err := object.Unmarshal(m.GetNode().GetObject()); err == nil {
			s.confirmed[m.GetNode().GetName()] = object.Annotations[rikv1alpha1.AnnotationConfirmed]
		}
	case m.GetDeletedNode() != nil:
		s.deleted[m.GetDeletedNode().GetUid()] = true
	case m.GetNodeGone() != nil:
		delete(s.objects, m.GetNodeGone().GetName())
	case m.GetTemplate() != nil:
		s.templates[m.GetTemplate().GetRevision()] = true
	case m.GetTemplateGone() != nil:
		delete(s.templates, m.GetTemplateGone().GetRevision())
	case m.GetPending() != nil:
		s.pending[m.GetPending().GetUid()] = m.GetPending()
	case m.GetBound() != nil:
		b := m.GetBound()
		s.bound[b.GetUid()] = b.GetNodeName()
		delete(s.pending, b.GetUid())
		s.startLocked(b.GetUid(), b.GetNodeName(), b.GetEnded())
	case m.GetGone() != nil:
		uid := m.GetGone().GetUid()
		delete(s.pending, uid)
		delete(s.bound, uid)
		delete(s.proposed, uid)
	case m.GetAck() != nil:
		s.ackedLocked(m.GetAck())
	case m.GetStop() != nil:
		s.stops[m.GetStop().GetUid()] = m.GetStop()
		s.stopLocked(m.GetStop().GetUid())
	case m.GetTombstone() != nil:
		s.tombstoned[m.GetTombstone().GetUid()] = m.GetTombstone().GetNodeName()
		s.stopTombstonedLocked()
	case m.GetSynced() != nil:
		s.synced = true
		for name, connected := range s.nodes {
			s.reportLocked(name, connected)
		}
		for uid := range s.running {
			s.observeLocked(uid, rikv1alpha1.InstanceRunning)
		}
	}
	s.placeLocked()
}

// placeLocked proposes nodes for all pending instances, in turn.
func (s *scripted) placeLocked() {
	if !s.synced || s.hold {
		return
	}
	var ready []string
	for name, connected := range s.nodes {
		if connected && s.objects[name] {
			ready = append(ready, name)
		}
	}
	if len(ready) == 0 {
		return
	}
	slices.Sort(ready)
	for uid, in := range s.pending {
		if s.proposed[uid] != "" || !s.templates[in.GetNamespace()+"/"+in.GetRevision()] {
			continue
		}
		node := ready[s.next%len(ready)]
		s.next++
		s.proposed[uid] = node
		s.say(&schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Binding{
			Binding: &schedulerv1.Binding{Uid: uid, NodeName: node},
		}})
	}
}

func (s *scripted) ackedLocked(a *schedulerv1.BindingAck) {
	node := s.proposed[a.GetUid()]
	delete(s.proposed, a.GetUid())
	if !a.GetDurable() || node == "" {
		return
	}
	delete(s.pending, a.GetUid())
	s.bound[a.GetUid()] = node
	s.startLocked(a.GetUid(), node, false)
}

// startLocked makes a node run an instance, once.
func (s *scripted) startLocked(uid, node string, ended bool) {
	if ended || s.running[uid] != "" || !s.nodes[node] || s.tombstoned[uid] != "" {
		return
	}
	s.running[uid] = node
	s.starts[uid]++
	s.observeLocked(uid, rikv1alpha1.InstanceCreating)
	s.observeLocked(uid, rikv1alpha1.InstanceRunning)
}

func (s *scripted) stopLocked(uid string) {
	node := s.running[uid]
	if node == "" {
		node = s.bound[uid]
	}
	if !s.nodes[node] {
		return
	}
	s.running[uid] = node
	s.observeLocked(uid, rikv1alpha1.InstanceTerminated)
	delete(s.running, uid)
}

func (s *scripted) stopTombstonedLocked() {
	for uid, node := range s.tombstoned {
		if s.nodes[node] {
			s.running[uid] = node
			s.observeLocked(uid, rikv1alpha1.InstanceTerminated)
			delete(s.running, uid)
			delete(s.tombstoned, uid)
		}
	}
}

func (s *scripted) observeLocked(uid string, phase rikv1alpha1.InstancePhase) {
	node := s.running[uid]
	if !s.nodes[node] {
		return
	}
	s.sequence[uid]++
	st := &rikv1alpha1.InstanceStatus{Phase: phase, Ready: phase == rikv1alpha1.InstanceRunning, Address: s.address}
	data, err := st.Marshal()
	if err != nil {
		panic(err)
	}
	s.say(&schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Observation{Observation: &schedulerv1.Observation{
		Uid: uid, Sequence: s.sequence[uid], Phase: string(phase), Status: data, NodeName: node,
	}}})
}

func (s *scripted) reportLocked(name string, connected bool) {
	info := &rikv1alpha1.NodeStatus{Info: rikv1alpha1.NodeInfo{
		Architecture: "amd64", OperatingSystem: "linux", Hostname: name, InternalAddress: "192.0.2.1",
		Kinds: []rikv1alpha1.WorkloadKind{rikv1alpha1.KindPod},
	}}
	r := &schedulerv1.NodeReport{Name: name, Connected: connected, Labels: map[string]string{"disk": "fast"}, Hold: s.holds[name]}
	if connected {
		r.Info, _ = info.Marshal()
	}
	s.say(&schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Node{Node: r}})
}

// say sends a message. The caller holds mu.
func (s *scripted) say(m *schedulerv1.SyncResponse) {
	if s.session == nil {
		return
	}
	select {
	case <-s.session.done:
	case s.session.out <- m:
	}
}

// do changes the script under its lock.
func (s *scripted) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// connect connects a node as its heartbeats would. disconnect does the opposite.
func (s *scripted) connect(name string) {
	s.do(func() {
		s.nodes[name] = true
		if s.synced {
			s.reportLocked(name, true)
		}
		for uid, node := range s.running {
			if node == name {
				s.observeLocked(uid, rikv1alpha1.InstanceRunning)
			}
		}
		for uid := range s.stops {
			if s.running[uid] == name {
				s.stopLocked(uid)
			}
		}
		s.stopTombstonedLocked()
		s.placeLocked()
	})
}

func (s *scripted) disconnect(name string) {
	s.do(func() {
		s.nodes[name] = false
		if s.synced {
			s.reportLocked(name, false)
		}
	})
}

func template() rikv1alpha1.InstanceTemplate {
	return rikv1alpha1.InstanceTemplate{
		Kind:       rikv1alpha1.KindPod,
		Containers: []rikv1alpha1.Container{{Name: "main", Image: "example.org/app:1"}},
	}
}

func automatic(namespace, name string, replicas int32) *rikv1alpha1.Workload {
	return &rikv1alpha1.Workload{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: rikv1alpha1.WorkloadSpec{
			Deploy: rikv1alpha1.DeployAutomatic, Replicas: &replicas, InstanceTemplate: template(),
		},
	}
}
