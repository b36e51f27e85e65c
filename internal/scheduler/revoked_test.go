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

// master is a controller whose listing is complete.
func (s *secured) master(nodes ...*rikv1alpha1.Node) syncStream {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	s.t.Cleanup(cancel)
	stream, err := schedulerv1.NewSchedulerClient(s.dial(s.controllers, &pkix.Name{CommonName: rikv1alpha1.UserController})).Sync(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	say(s.t, stream, &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Hello{Hello: &schedulerv1.Hello{Term: 1, Cluster: "here"}}})
	for _, uid := range s.deleted {
		say(s.t, stream, &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_DeletedNode{DeletedNode: &schedulerv1.DeletedNode{Uid: uid}}})
	}
	for _, n := range nodes {
		sendOf(s.t, stream, n)
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

func sendOf(t *testing.T, stream syncStream, n *rikv1alpha1.Node) {
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
	return s.agentOf("a", uid)
}

func (s *secured) agentOf(name, uid string) schedulerv1.Worker_ConnectClient {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	s.t.Cleanup(cancel)
	subject := &pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + name, Organization: []string{rikv1alpha1.GroupNodes}, SerialNumber: uid}
	stream, err := schedulerv1.NewWorkerClient(s.dial(s.worker, subject)).Connect(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	words := register(s.t, name)
	words.Asks, words.Running = !s.older, []string{"i1", "i2"}
	_ = stream.Send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Register{Register: words}})
	return stream
}

// admitted receives messages until the node has its full set.
func admitted(t *testing.T, stream schedulerv1.Worker_ConnectClient) {
	t.Helper()
	if m, err := stream.Recv(); err != nil || m.GetAdmitted() == nil {
		t.Fatalf("the first order is %v, %v, want Admitted", m, err)
	}
	if m, err := stream.Recv(); err != nil || m.GetAllowed() == nil {
		t.Fatalf("the second order is %v, %v, want Allowed", m, err)
	}
}

// sentAway checks that the node is ordered to run no instances, and that the stream ends with
// the reason.
func sentAway(t *testing.T, stream schedulerv1.Worker_ConnectClient) {
	t.Helper()
	m, err := stream.Recv()
	if err != nil || m.GetDismissed() == nil || m.GetTerm() != 1 || m.GetCluster() != "here" {
		t.Errorf("the order is %v, %v, want Dismissed", m, err)
	}
	if _, err = stream.Recv(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "rikctl token create") {
		t.Errorf("the stream ended with %v, want PermissionDenied and the way back", err)
	}
}

// TestDeletedNodeIsSentAway: the certificate of a deleted node is invalid from that moment,
// even if a new node has the same name. The deleted node stops its instances.
func TestDeletedNodeIsSentAway(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	controller := s.master(nodeObject("u1"))
	old := s.agent("u1")
	admitted(t, old)
	say(t, controller, &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_NodeGone{NodeGone: &schedulerv1.NodeGone{Name: "a"}}})
	sentAway(t, old)
	sentAway(t, s.agent("u1"))

	// A node connects with its new certificate before the controller sends the new Node.
	fresh := s.agent("u2")
	sendOf(t, controller, nodeObject("u2"))
	admitted(t, fresh)
	sentAway(t, s.agent("u1"))
	// The Node is deleted and created again at once, so the controller sends only the new Node.
	sendOf(t, controller, nodeObject("u3"))
	sentAway(t, fresh)
	admitted(t, s.agent("u3"))
}

// TestNodeDeletedWithoutAController: the controller has a record of a Node that was deleted while
// no scheduler ran.
func TestNodeDeletedWithoutAController(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	agent := s.agent("u1")
	if m, err := agent.Recv(); err != nil || m.GetAdmitted() == nil {
		t.Fatalf("without a controller the first order is %v, %v, want Admitted", m, err)
	}
	s.deleted = []string{"u1"}
	s.master()
	sentAway(t, agent)
}

// TestANodeThatTheClusterHasNoRecordOfIsNotSentAway: the datastore may have lost the Node. The
// node receives the list of what it may run, which it does not obey without a confirmation. It
// gets no new instances.
func TestANodeThatTheClusterHasNoRecordOfIsNotSentAway(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	agent := s.agent("u1")
	if m, err := agent.Recv(); err != nil || m.GetAdmitted() == nil {
		t.Fatalf("the first order is %v, %v, want Admitted", m, err)
	}
	controller := s.master()
	if m, err := agent.Recv(); err != nil || m.GetAllowed() == nil || m.GetCluster() != "here" {
		t.Fatalf("the second order is %v, %v, want the list", m, err)
	}
	hold := reported(t, controller)
	if hold.GetReason() != rikv1alpha1.ConfirmUnknownNode || hold.GetCertificate() != "u1" || hold.GetInstances() != 2 {
		t.Fatalf("the controller received %v, want an unknown node with two instances", hold)
	}
	// The controller creates a Node that shows the certificate.
	shown := nodeObject("u2")
	shown.Annotations = map[string]string{rikv1alpha1.AnnotationUnconfirmedCertificate: "u1"}
	sendOf(t, controller, shown)
	_ = agent.Send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Hold{Hold: &schedulerv1.Hold{
		Id: "h1", Reason: rikv1alpha1.ConfirmUnknownInstances, Instances: 2,
	}}})
	for hold = reported(t, controller); hold.GetId() != "h1"; {
		hold = reported(t, controller)
	}
	if hold.GetCertificate() != "u1" {
		t.Errorf("the controller received %v, want also that the certificate is unknown", hold)
	}
	shown.Annotations[rikv1alpha1.AnnotationConfirmed] = "h0"
	sendOf(t, controller, shown)
	shown.Annotations[rikv1alpha1.AnnotationConfirmed] = "h1"
	shown.Annotations[rikv1alpha1.AnnotationConfirmedCertificate] = "u1"
	sendOf(t, controller, shown)
	for {
		m, err := agent.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetConfirmed() != nil {
			if m.GetConfirmed().GetId() != "h1" {
				t.Errorf("the node received that %v was confirmed, want h1", m)
			}
			break
		}
	}
	// Another node with that name does not affect this one.
	if _, err := s.agentOf("b", "u9").Recv(); err != nil {
		t.Errorf("another unknown node: %v, want it admitted", err)
	}
	other := s.agent("u8")
	if _, err := other.Recv(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "does not belong to node") {
		t.Errorf("an unknown node with the name of a known one: %v, want PermissionDenied and no order", err)
	}
	// Deleting the Node also revokes the certificate that was confirmed for it.
	say(t, controller, &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_NodeGone{NodeGone: &schedulerv1.NodeGone{Name: "a"}}})
	for {
		m, err := agent.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetDismissed() != nil {
			break
		}
	}
}

// reported receives messages until the controller gets the report of a hold.
func reported(t *testing.T, stream syncStream) *schedulerv1.Hold {
	t.Helper()
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetNode().GetHold() != nil {
			return m.GetNode().GetHold()
		}
	}
}

// TestAnOlderUnknownRikletReceivesNothing: an older riklet would stop all its instances at
// once.
func TestAnOlderUnknownRikletReceivesNothing(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	s.older = true
	controller := s.master()
	agent := s.agent("u1")
	if m, err := agent.Recv(); err != nil || m.GetAdmitted() == nil {
		t.Fatalf("the first order is %v, %v, want Admitted", m, err)
	}
	if hold := reported(t, controller); hold.GetReason() != rikv1alpha1.ConfirmUnknownNode {
		t.Errorf("the controller received %v, want an unknown node", hold)
	}
	shown := nodeObject("u2")
	shown.Annotations = map[string]string{rikv1alpha1.AnnotationConfirmedCertificate: "u1"}
	sendOf(t, controller, shown)
	if m, err := agent.Recv(); err != nil || m.GetAllowed() == nil {
		t.Errorf("the second order is %v, %v, want the list, once it is confirmed", m, err)
	}
	say(t, controller, &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_NodeGone{NodeGone: &schedulerv1.NodeGone{Name: "a"}}})
	if m, err := agent.Recv(); err != nil || m.GetAllowed() == nil || len(m.GetAllowed().GetInstances()) > 0 {
		t.Errorf("the order is %v, %v, want an empty list", m, err)
	}
}
