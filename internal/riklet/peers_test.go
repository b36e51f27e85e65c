package riklet

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// cluster is both of the node's peers. It admits every node, allows all ordered instances,
// acknowledges every observation, and has every revision.
type cluster struct {
	schedulerv1.UnimplementedWorkerServer
	nodev1.UnimplementedNodeServer

	term int64 // constant

	mu        sync.Mutex
	order     chan *schedulerv1.Order // of the current stream; nil without one
	allowed   []*schedulerv1.Run
	registers []*schedulerv1.Register
	callers   []string // common names of the certificates
	reported  map[string]*schedulerv1.Observation
	usages    []*nodev1.Usage
	images    []string
	ports     []*schedulerv1.UsedPort
	troubles  []*schedulerv1.NodeTrouble
	asked     []string
	node      nodev1.Node_ConnectServer
	refuses   error // the controller's answer to each connection
	data      map[int64][]*nodev1.SessionOutput
}

func newCluster() *cluster {
	return &cluster{term: 1, reported: map[string]*schedulerv1.Observation{}, data: map[int64][]*nodev1.SessionOutput{}}
}

// locked calls f with the lock, for tests that read the state.
func (c *cluster) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func caller(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		return info.State.VerifiedChains[0][0].Subject.CommonName
	}
	return ""
}

// workerEnd is the scheduler. There are two types, because two services have a method Connect.
type workerEnd struct {
	schedulerv1.UnimplementedWorkerServer
	*cluster
}

type nodeEnd struct {
	nodev1.UnimplementedNodeServer
	*cluster
}

func (w workerEnd) Connect(stream schedulerv1.Worker_ConnectServer) error {
	c := w.cluster
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	orders := make(chan *schedulerv1.Order, 100)
	c.mu.Lock()
	c.registers = append(c.registers, m.GetRegister())
	c.callers = append(c.callers, caller(stream.Context()))
	c.order = orders
	allowed := &schedulerv1.Order{Term: c.term, Message: &schedulerv1.Order_Allowed{Allowed: &schedulerv1.Allowed{Instances: c.allowed}}}
	c.mu.Unlock()
	orders <- &schedulerv1.Order{Message: &schedulerv1.Order_Admitted{Admitted: &schedulerv1.Admitted{HeartbeatMillis: 1000, TimeoutMillis: 20_000}}}
	orders <- allowed
	received := make(chan error, 1)
	go func() { received <- c.receiveReports(stream, orders) }()
	for {
		select {
		case o := <-orders:
			if err := stream.Send(o); err != nil {
				return err
			}
		case err := <-received:
			return err
		}
	}
}

func (c *cluster) receiveReports(stream schedulerv1.Worker_ConnectServer, orders chan<- *schedulerv1.Order) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		c.mu.Lock()
		if m.GetHeartbeat() != nil {
			c.troubles = m.GetHeartbeat().GetTroubles()
		}
		if m.GetHeartbeat().GetUsedPortsChanged() {
			c.ports = m.GetHeartbeat().GetUsedPorts()
		}
		switch {
		case m.GetObservation() != nil:
			c.reported[m.GetObservation().GetUid()] = m.GetObservation()
		case m.GetHeartbeat().GetImagesChanged():
			c.images = m.GetHeartbeat().GetImages()
		}
		c.mu.Unlock()
		if o := m.GetObservation(); o != nil {
			orders <- &schedulerv1.Order{Term: c.term, Message: &schedulerv1.Order_Ack{Ack: &schedulerv1.Ack{Uid: o.GetUid(), Sequence: o.GetSequence()}}}
		}
	}
}

// run binds an instance to the node and orders it.
func (c *cluster) run(uid string) {
	run := &schedulerv1.Run{Uid: uid, Namespace: "shop", Name: "web-" + uid, Workload: "web", Revision: "web-1"}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allowed = append(c.allowed, run)
	if c.order != nil {
		c.order <- &schedulerv1.Order{Term: c.term, Message: &schedulerv1.Order_Run{Run: run}}
	}
}

func (c *cluster) stop(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order <- &schedulerv1.Order{Term: c.term, Message: &schedulerv1.Order_Stop{Stop: &schedulerv1.StopOrder{Uid: uid, GraceSeconds: -1}}}
}

func (c *cluster) phase(uid string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reported[uid].GetPhase()
}

func (n nodeEnd) Connect(stream nodev1.Node_ConnectServer) error {
	c := n.cluster
	c.mu.Lock()
	c.node = stream
	c.callers = append(c.callers, caller(stream.Context()))
	refuses := c.refuses
	c.mu.Unlock()
	if refuses != nil {
		return refuses
	}
	if err := stream.Send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Hello{Hello: &nodev1.ControllerHello{Protocol: nodev1.Protocol}}}); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if measured := m.GetMeasurements(); measured != nil {
			c.locked(func() { c.usages = measured.GetUsages() })
		}
		if get := m.GetGet(); get != nil {
			c.locked(func() { c.asked = append(c.asked, fmt.Sprint(get.GetKind(), " ", get.GetName())) })
			if err := stream.Send(answer(get)); err != nil {
				return err
			}
		}
	}
}

// Session implements nodev1.NodeServer.
func (n nodeEnd) Session(stream nodev1.Node_SessionServer) error {
	c := n.cluster
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	id := m.GetStart().GetSession()
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		c.locked(func() { c.data[id] = append(c.data[id], m) })
		if m.GetEnd() != nil {
			return nil
		}
	}
}

func answer(get *nodev1.Get) *nodev1.ControllerMessage {
	template := &rikv1alpha1.InstanceTemplate{Containers: []rikv1alpha1.Container{{Name: "main", Image: "oci:/images/web:v1"}}}
	data, err := template.Marshal()
	if err != nil {
		panic(err)
	}
	object := &nodev1.Object{Kind: get.GetKind(), Namespace: get.GetNamespace(), Name: get.GetName(), Found: true, Data: data}
	if get.GetKind() != nodev1.Kind_KIND_REVISION {
		object.Data, object.Entries = nil, map[string][]byte{"key": []byte("value of " + get.GetName())}
	}
	return &nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Object{Object: object}}
}

// change sends a later version of a Secret, without a request, as the controller does.
func (c *cluster) change(t *testing.T, name, value string) {
	t.Helper()
	c.mu.Lock()
	node := c.node
	c.mu.Unlock()
	object := &nodev1.Object{Kind: nodev1.Kind_KIND_SECRET, Namespace: "shop", Name: name, Found: true,
		Entries: map[string][]byte{"key": []byte(value)}}
	if err := node.Send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Object{Object: object}}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func (c *cluster) session(t *testing.T, open *nodev1.OpenSession) (out string, end *nodev1.SessionEnd) {
	t.Helper()
	c.mu.Lock()
	node := c.node
	c.mu.Unlock()
	if err := node.Send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Open{Open: open}}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.data[open.GetSession()] {
		out += string(m.GetOutput().GetData())
		end = m.GetEnd()
	}
	return out, end
}

// endpoint serves the cluster in memory. Each half can be down.
type endpoint struct {
	mu       sync.Mutex
	listener *bufconn.Listener
	server   *grpc.Server
	done     chan struct{}
	register func(*grpc.Server)
}

func (e *endpoint) up() {
	e.mu.Lock()
	defer e.mu.Unlock()
	listener, server, done := bufconn.Listen(1<<16), grpc.NewServer(), make(chan struct{})
	e.register(server)
	e.listener, e.server, e.done = listener, server, done
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
}

func (e *endpoint) down() {
	e.mu.Lock()
	server, done := e.server, e.done
	e.server, e.listener = nil, nil
	e.mu.Unlock()
	if server != nil {
		server.Stop()
		<-done
	}
}

func (e *endpoint) dial(context.Context) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			e.mu.Lock()
			listener := e.listener
			e.mu.Unlock()
			if listener == nil {
				return nil, fmt.Errorf("connection refused")
			}
			return listener.DialContext(ctx)
		}))
}
