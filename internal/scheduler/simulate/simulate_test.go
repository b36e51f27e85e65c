package simulate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/scheduler"
	"rik.dev/rik/internal/scheduler/simulate"
)

const (
	nodes     = 20
	instances = 500
)

// system is a scheduler with simulated nodes, and a controller that keeps what a real
// controller would store.
type system struct {
	t    *testing.T
	stop func()

	mu      sync.Mutex
	workers *grpc.ClientConn // of all nodes; changes at a restart
	term    int64
	stream  grpc.BidiStreamingClient[schedulerv1.SyncRequest, schedulerv1.SyncResponse]
	nodes   map[string]bool
	bound   map[string]string
	phases  map[string]string
	history map[string][]string
}

func newSystem(t *testing.T) *system {
	return &system{
		t: t, nodes: map[string]bool{}, bound: map[string]string{}, phases: map[string]string{}, history: map[string][]string{},
	}
}

func connect(l *bufconn.Listener) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
}

func connection(t *testing.T, l *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	conn, err := connect(l)
	if err != nil {
		t.Fatalf("dialing: %v", err)
	}
	return conn
}

// start starts a scheduler and the next term of the controller, which lists its objects.
func (y *system) start() {
	y.t.Helper()
	controllers, workers := bufconn.Listen(1<<20), bufconn.Listen(1<<20)
	s, err := scheduler.New(scheduler.Config{
		Controllers: []scheduler.Endpoint{{Listener: controllers, Trusted: true}},
		Workers:     []scheduler.Endpoint{{Listener: workers, Trusted: true}},
	})
	if err != nil {
		y.t.Fatalf("New() = %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.Run(ctx) }()
	conn, shared := connection(y.t, controllers), connection(y.t, workers)
	stream, err := schedulerv1.NewSchedulerClient(conn).Sync(ctx)
	if err != nil {
		y.t.Fatalf("Sync() = %v", err)
	}
	y.mu.Lock()
	y.workers, y.stream = shared, stream
	y.term++
	y.list()
	y.mu.Unlock()
	go func() {
		y.read(stream)
		done <- nil
	}()
	y.stop = sync.OnceFunc(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				y.t.Errorf("scheduler or controller ended with %v", err)
			}
		}
		_, _ = conn.Close(), shared.Close()
	})
}

func (y *system) send(m *schedulerv1.SyncRequest) {
	if err := y.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		y.t.Errorf("sending: %v", err)
	}
}

func (y *system) list() {
	y.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Hello{Hello: &schedulerv1.Hello{Term: y.term}}})
	template, err := (&rikv1alpha1.InstanceTemplate{}).Marshal()
	if err != nil {
		y.t.Errorf("encoding: %v", err)
	}
	y.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Template{
		Template: &schedulerv1.Template{Revision: "ns/w", Object: template},
	}})
	for name := range y.nodes {
		y.sendNode(name)
	}
	for uid, node := range y.bound {
		y.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Bound{Bound: instance(uid, node)}})
	}
	y.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Synced{Synced: &schedulerv1.Synced{}}})
}

func instance(uid, node string) *schedulerv1.Instance {
	return &schedulerv1.Instance{Uid: uid, Namespace: "ns", Name: uid, Workload: "w", Revision: "w", NodeName: node}
}

func (y *system) sendNode(name string) {
	object, err := (&rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}).Marshal()
	if err != nil {
		y.t.Errorf("encoding: %v", err)
	}
	y.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Node{Node: &schedulerv1.Node{Name: name, Object: object}}})
}

// read handles the scheduler's messages as the controller does, until the scheduler stops.
func (y *system) read(stream grpc.BidiStreamingClient[schedulerv1.SyncRequest, schedulerv1.SyncResponse]) {
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		y.mu.Lock()
		switch x := m.Message.(type) {
		case *schedulerv1.SyncResponse_Node:
			if x.Node.Connected && !y.nodes[x.Node.Name] {
				y.nodes[x.Node.Name] = true
				y.sendNode(x.Node.Name)
			}
		case *schedulerv1.SyncResponse_Binding:
			y.bound[x.Binding.Uid] = x.Binding.NodeName
			y.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Ack{
				Ack: &schedulerv1.BindingAck{Uid: x.Binding.Uid, Durable: true},
			}})
		case *schedulerv1.SyncResponse_Observation:
			y.observed(x.Observation)
		}
		y.mu.Unlock()
	}
}

func (y *system) observed(o *schedulerv1.Observation) {
	y.phases[o.Uid] = o.Phase
	y.history[o.Uid] = append(y.history[o.Uid], o.Phase)
	seen := rikv1alpha1.InstanceStatus{}
	if err := seen.Unmarshal(o.Status); err != nil || string(seen.Phase) != o.Phase {
		y.t.Errorf("status of %s = %+v, %v, want phase %s", o.Uid, seen, err, o.Phase)
	}
	if o.Phase == string(rikv1alpha1.InstanceTerminated) {
		delete(y.bound, o.Uid)
		y.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Gone{Gone: &schedulerv1.InstanceGone{Uid: o.Uid}}})
	}
}

// count returns the number of instances in a phase.
func (y *system) count(phase string) int {
	n := 0
	for _, p := range y.phases {
		if p == phase {
			n++
		}
	}
	return n
}

func (y *system) simulate(ctx context.Context) error {
	return simulate.Run(ctx, simulate.Config{
		Nodes: nodes, Zones: 3, StartDelay: time.Millisecond, StopDelay: time.Millisecond,
		RetryDelay: 10 * time.Millisecond,
		Allocatable: rikv1alpha1.ResourceList{
			rikv1alpha1.ResourceCPU: resource.MustParse("4"), rikv1alpha1.ResourceInstances: resource.MustParse("100"),
		},
		Dial: func(context.Context, string) (grpc.ClientConnInterface, func(), error) {
			y.mu.Lock()
			defer y.mu.Unlock()
			return y.workers, func() {}, nil
		},
	})
}

// TestLifeOverARestart runs instances on simulated nodes, restarts scheduler and controller in
// between, and removes the instances again.
func TestLifeOverARestart(t *testing.T) {
	t.Parallel()
	y := newSystem(t)
	y.start()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- y.simulate(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		y.stop()
	}()
	y.until("all nodes joined", func() bool { return len(y.nodes) == nodes })
	y.do(func() {
		for i := range instances {
			y.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Pending{Pending: instance(fmt.Sprintf("%03d", i), "")}})
		}
	})
	y.until("all run", func() bool { return y.count("Running") == instances })
	y.do(func() {
		per := map[string]int{}
		for _, node := range y.bound {
			per[node]++
		}
		for node, n := range per {
			if n != instances/nodes {
				t.Errorf("node %s has %d instances, want %d", node, n, instances/nodes)
			}
		}
	})

	y.stop()
	where := maps.Clone(y.bound)
	clear(y.phases)
	clear(y.history)
	y.start()
	y.until("all are seen again", func() bool { return y.count("Running") == instances })
	y.do(func() {
		if !maps.Equal(where, y.bound) {
			t.Error("the restart moved instances")
		}
		for uid := range where {
			y.send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Stop{Stop: &schedulerv1.Stop{Uid: uid}}})
		}
	})
	y.until("all are gone", func() bool { return y.count("Terminated") == instances })
	y.do(func() {
		for uid, phases := range y.history {
			if slices.Contains(phases, "Creating") {
				t.Errorf("%s was made again after the restart: %v", uid, phases)
			}
		}
	})
}

// until polls a condition. It calls the condition with the system locked.
func (y *system) until(what string, holds func() bool) {
	y.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		ok := false
		y.do(func() { ok = holds() })
		if ok {
			return
		}
		if time.Now().After(deadline) {
			y.do(func() {
				y.t.Errorf("waiting until %s: %d nodes, %d Creating, %d Running, %d Terminated of %d",
					what, len(y.nodes), y.count("Creating"), y.count("Running"), y.count("Terminated"), instances)
			})
			y.t.FailNow()
		}
		runtime.Gosched()
	}
}

// do calls f with the system locked.
func (y *system) do(f func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	f()
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	err := simulate.Run(t.Context(), simulate.Config{Zones: -1})
	for _, want := range []string{"nodes:", "dial", "allocatable", "negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run() = %v, want it to name %q", err, want)
		}
	}
}
