package scheduler

import (
	"context"
	"crypto/x509/pkix"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
)

type syncStream = schedulerv1.Scheduler_SyncClient

// master is a controller that has told all.
func (s *secured) master(nodes ...*rikv1alpha1.Node) syncStream {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	s.t.Cleanup(cancel)
	stream, err := schedulerv1.NewSchedulerClient(s.dial(s.controllers, &pkix.Name{CommonName: rikv1alpha1.UserController})).Sync(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	say(s.t, stream, &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Hello{Hello: &schedulerv1.Hello{Term: 1}}})
	for _, n := range nodes {
		tellOf(s.t, stream, n)
	}
	say(s.t, stream, &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Synced{Synced: &schedulerv1.Synced{}}})
	return stream
}

func say(t *testing.T, stream syncStream, m *schedulerv1.SyncRequest) {
	t.Helper()
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
}

func tellOf(t *testing.T, stream syncStream, n *rikv1alpha1.Node) {
	t.Helper()
	data, err := n.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	say(t, stream, &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Node{Node: &schedulerv1.Node{Name: n.Name, Object: data}}})
}

func nodeObject(uid string) *rikv1alpha1.Node {
	return &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID(uid)}}
}

// agent connects as node a with the certificate of a Node.
func (s *secured) agent(uid string) schedulerv1.Worker_ConnectClient {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	s.t.Cleanup(cancel)
	subject := &pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + "a", Organization: []string{rikv1alpha1.GroupNodes}, SerialNumber: uid}
	stream, err := schedulerv1.NewWorkerClient(s.dial(s.worker, subject)).Connect(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = stream.Send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Register{Register: register(s.t, "a")}})
	return stream
}

// admitted reads until the node has its set.
func admitted(t *testing.T, stream schedulerv1.Worker_ConnectClient) {
	t.Helper()
	if m, err := stream.Recv(); err != nil || m.GetAdmitted() == nil {
		t.Fatalf("the first order is %v, %v, want Admitted", m, err)
	}
	if m, err := stream.Recv(); err != nil || m.GetAllowed() == nil {
		t.Fatalf("the second order is %v, %v, want Allowed", m, err)
	}
}

// sentAway reads that the node may run nothing, and why.
func sentAway(t *testing.T, stream schedulerv1.Worker_ConnectClient) {
	t.Helper()
	m, err := stream.Recv()
	if err != nil || m.GetAllowed() == nil || len(m.GetAllowed().GetInstances()) > 0 || m.GetTerm() != 1 {
		t.Errorf("the order is %v, %v, want an empty set", m, err)
	}
	if _, err = stream.Recv(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "rikctl token create") {
		t.Errorf("the stream ended with %v, want PermissionDenied and the way back", err)
	}
}

// TestDeletedNodeIsSentAway: its certificate is of no use from that moment, also
// beside a new node of the name, and it stops what it runs.
func TestDeletedNodeIsSentAway(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	controller := s.master(nodeObject("u1"))
	old := s.agent("u1")
	admitted(t, old)
	say(t, controller, &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_NodeGone{NodeGone: &schedulerv1.NodeGone{Name: "a"}}})
	sentAway(t, old)
	sentAway(t, s.agent("u1"))

	// A node comes with its new certificate before the controller's word of it.
	fresh := s.agent("u2")
	tellOf(t, controller, nodeObject("u2"))
	admitted(t, fresh)
	sentAway(t, s.agent("u1"))
	// Deleted and made anew at once, so that the controller tells only the latter.
	tellOf(t, controller, nodeObject("u3"))
	sentAway(t, fresh)
	admitted(t, s.agent("u3"))
}

// TestNodeDeletedWhileNobodyKnew: what a controller does not name when it has
// told all is gone.
func TestNodeDeletedWhileNobodyKnew(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	agent := s.agent("u1")
	if m, err := agent.Recv(); err != nil || m.GetAdmitted() == nil {
		t.Fatalf("without a controller the first order is %v, %v, want Admitted: nobody knows better", m, err)
	}
	s.master()
	sentAway(t, agent)
	// A certificate that names no Node counts for the one of its name.
	sentAway(t, s.agent(""))
}
