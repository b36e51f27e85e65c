package simulate_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/scheduler"
	"rik.dev/rik/internal/scheduler/simulate"
)

// BenchmarkToRunning measures an instance from pending to Running. It uses the real protocols
// in one process, with a controller that acknowledges every binding at once. The result is the
// cost of the scheduler and its streams alone.
func BenchmarkToRunning(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) { benchToRunning(b, n) })
	}
}

func benchToRunning(b *testing.B, nodes int) {
	controllers, workers := bufconn.Listen(1<<20), bufconn.Listen(1<<20)
	s, err := scheduler.New(scheduler.Config{
		Controllers: []scheduler.Endpoint{{Listener: controllers, Trusted: true}},
		Workers:     []scheduler.Endpoint{{Listener: workers, Trusted: true}},
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.Run(ctx) }()
	shared := dialFor(b, workers)
	go func() {
		done <- simulate.Run(ctx, simulate.Config{
			Nodes: nodes, Allocatable: rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("64")},
			Dial: func(context.Context, string) (grpc.ClientConnInterface, func(), error) { return shared, func() {}, nil },
		})
	}()
	b.Cleanup(func() {
		cancel()
		<-done
		<-done
	})
	syncing, err := schedulerv1.NewSchedulerClient(dialFor(b, controllers)).Sync(ctx)
	if err != nil {
		b.Fatal(err)
	}
	stream := &lockedStream{BidiStreamingClient: syncing}
	joined, running := make(chan struct{}), make(chan struct{})
	go acceptAll(stream, nodes, b.N, joined, running)
	<-joined
	b.ResetTimer()
	for i := range b.N {
		in := instance(fmt.Sprintf("%08x-0000-4000-8000-000000000000", i), "")
		if err := stream.Send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Pending{Pending: in}}); err != nil {
			b.Fatal(err)
		}
	}
	<-running
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "instances/s")
}

// lockedStream allows two goroutines to send.
type lockedStream struct {
	grpc.BidiStreamingClient[schedulerv1.SyncRequest, schedulerv1.SyncResponse]
	mu sync.Mutex
}

func (s *lockedStream) Send(m *schedulerv1.SyncRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.BidiStreamingClient.Send(m)
}

func dialFor(b *testing.B, l *bufconn.Listener) *grpc.ClientConn {
	b.Helper()
	conn, err := connect(l)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// acceptAll is a controller that admits every node and acknowledges every binding.
func acceptAll(stream *lockedStream, nodes, instances int, joined, running chan struct{}) {
	send := func(m *schedulerv1.SyncRequest) {
		// If the stream has ended, Recv returns the error.
		_ = stream.Send(m)
	}
	send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Hello{Hello: &schedulerv1.Hello{Term: 1}}})
	template, _ := (&rikv1alpha1.InstanceTemplate{}).Marshal()
	send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Template{Template: &schedulerv1.Template{Revision: "ns/w", Object: template}}})
	send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Synced{Synced: &schedulerv1.Synced{}}})
	known := map[string]bool{}
	started := 0
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		switch x := m.Message.(type) {
		case *schedulerv1.SyncResponse_Node:
			if known[x.Node.Name] || !x.Node.Connected {
				continue
			}
			known[x.Node.Name] = true
			object, _ := (&rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: x.Node.Name}}).Marshal()
			send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Node{Node: &schedulerv1.Node{Name: x.Node.Name, Object: object}}})
			if len(known) == nodes {
				close(joined)
			}
		case *schedulerv1.SyncResponse_Binding:
			send(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Ack{Ack: &schedulerv1.BindingAck{Uid: x.Binding.Uid, Durable: true}}})
		case *schedulerv1.SyncResponse_Observation:
			if x.Observation.Phase != string(rikv1alpha1.InstanceRunning) {
				continue
			}
			if started++; started == instances {
				close(running)
			}
		}
	}
}
