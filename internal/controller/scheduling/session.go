package scheduling

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/instance"
	"rik.dev/rik/internal/controller/node"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

type stream = grpc.BidiStreamingClient[schedulerv1.SyncRequest, schedulerv1.SyncResponse]

// sent is the state of an instance that the scheduler received in this session.
type sent struct {
	node  string // empty while pending
	ended bool
	stop  *order
}

// order is the stop request that was sent last.
type order struct {
	grace int64
	force bool
}

// session is one stream. Only the sending goroutine accesses its maps.
type session struct {
	config *Config
	outbox *outbox
	stream stream

	nodes     map[string][]byte
	templates map[types.NamespacedName]struct{}
	instances map[types.UID]sent
	// waiting holds the instances whose revision is not in the view yet.
	waiting map[types.NamespacedName]map[types.UID]struct{}
}

func newSession(c *Config, o *outbox, s stream) *session {
	return &session{
		config: c, outbox: o, stream: s,
		nodes:     map[string][]byte{},
		templates: map[types.NamespacedName]struct{}{},
		instances: map[types.UID]sent{},
		waiting:   map[types.NamespacedName]map[types.UID]struct{}{},
	}
}

// send sends the full state, then changes, until the session ends.
func (s *session) send(ctx context.Context) error {
	if err := s.sendMessage(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Hello{
		Hello: &schedulerv1.Hello{Term: s.config.Term, Controller: s.config.Identity, Cluster: s.config.Cluster, Restored: s.config.Restored},
	}}); err != nil {
		return err
	}
	if err := s.sendDeleted(s.config.DeletedNodes()); err != nil {
		return err
	}
	if err := s.flush(s.everything()); err != nil {
		return err
	}
	synced := &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Synced{Synced: &schedulerv1.Synced{}}}
	if err := s.sendMessage(synced); err != nil {
		return err
	}
	s.config.Logger.Info("sent the complete state to the scheduler", "term", s.config.Term,
		"nodes", len(s.nodes), "instances", len(s.instances))
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.outbox.wake:
		}
		if err := s.flush(s.outbox.take()); err != nil {
			return err
		}
	}
}

// everything returns a batch with all objects. The objects collected for an earlier session are
// included. Acknowledgments are not, because the scheduler has proposed nothing in this
// session.
func (s *session) everything() batch {
	b := s.outbox.take()
	b.acks = nil
	for _, n := range s.config.Nodes.All() {
		b.nodes[n.Name] = struct{}{}
	}
	for _, in := range s.config.Instances.All() {
		b.instances[in.UID] = struct{}{}
	}
	b.tombstones = s.config.Tombstones()
	return b
}

// sendMessage sends one message, unless the lease has ended.
func (s *session) sendMessage(m *schedulerv1.SyncRequest) error {
	if err := s.config.Active(); err != nil {
		return err
	}
	s.config.Metrics.sent.Inc()
	if err := s.stream.Send(m); err != nil {
		return fmt.Errorf("sending to the scheduler: %w", err)
	}
	return nil
}

func (s *session) flush(b batch) error {
	for name := range b.nodes {
		if err := s.sendNode(name); err != nil {
			return err
		}
	}
	for key := range b.revisions {
		if err := s.sendRevision(key, &b); err != nil {
			return err
		}
	}
	for _, a := range b.acks {
		if err := s.sendAck(a); err != nil {
			return err
		}
	}
	for uid := range b.instances {
		if err := s.sendInstance(uid); err != nil {
			return err
		}
	}
	for _, t := range b.tombstones {
		if err := s.sendMessage(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Tombstone{
			Tombstone: &schedulerv1.Tombstone{Uid: string(t.UID), NodeName: t.Node},
		}}); err != nil {
			return err
		}
	}
	return nil
}

// sendNode sends the parts of a node that placement needs, if they changed.
func (s *session) sendNode(name string) error {
	n := s.config.Nodes.Get(types.NamespacedName{Name: name})
	if n == nil || n.DeletionTimestamp != nil {
		if _, ok := s.nodes[name]; !ok {
			return nil
		}
		delete(s.nodes, name)
		return s.sendMessage(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_NodeGone{
			NodeGone: &schedulerv1.NodeGone{Name: name},
		}})
	}
	slim := &rikv1alpha1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, Labels: n.Labels, Annotations: confirmations(n)},
		Spec:       n.Spec,
	}
	data, err := slim.Marshal()
	if err != nil {
		return fmt.Errorf("encoding node %q: %w", name, err)
	}
	if last, ok := s.nodes[name]; ok && bytes.Equal(last, data) {
		return nil
	}
	s.nodes[name] = data
	return s.sendMessage(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Node{
		Node: &schedulerv1.Node{Name: name, Object: data},
	}})
}

// confirmations returns those of a Node's annotations that record confirmations.
func confirmations(n *rikv1alpha1.Node) map[string]string {
	var kept map[string]string
	for _, key := range []string{rikv1alpha1.AnnotationConfirmed, rikv1alpha1.AnnotationConfirmedCertificate, rikv1alpha1.AnnotationUnconfirmedCertificate} {
		if value, ok := n.Annotations[key]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
	}
	return kept
}

// sendDeleted sends the UIDs of Nodes that were deleted on purpose.
func (s *session) sendDeleted(uids []types.UID) error {
	for _, uid := range uids {
		if err := s.sendMessage(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_DeletedNode{
			DeletedNode: &schedulerv1.DeletedNode{Uid: string(uid)},
		}}); err != nil {
			return err
		}
	}
	return nil
}

// sendRevision reports a deleted revision. For an existing revision, it adds the instances that
// waited for it to the batch.
func (s *session) sendRevision(key types.NamespacedName, b *batch) error {
	if s.config.Revisions.Get(key) != nil {
		for uid := range s.waiting[key] {
			b.instances[uid] = struct{}{}
		}
		delete(s.waiting, key)
		return nil
	}
	if _, ok := s.templates[key]; !ok {
		return nil
	}
	delete(s.templates, key)
	return s.sendMessage(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_TemplateGone{
		TemplateGone: &schedulerv1.TemplateGone{Revision: key.String()},
	}})
}

// sendTemplate sends the template of an instance once. It returns false if the view does not
// have the revision yet.
func (s *session) sendTemplate(in *rikv1alpha1.Instance) (bool, error) {
	key := types.NamespacedName{Namespace: in.Namespace, Name: in.Spec.Revision}
	if _, ok := s.templates[key]; ok {
		return true, nil
	}
	r := s.config.Revisions.Get(key)
	if r == nil {
		if s.waiting[key] == nil {
			s.waiting[key] = map[types.UID]struct{}{}
		}
		s.waiting[key][in.UID] = struct{}{}
		return false, nil
	}
	data, err := r.Template.Marshal()
	if err != nil {
		return false, fmt.Errorf("encoding revision %q: %w", key, err)
	}
	s.templates[key] = struct{}{}
	return true, s.sendMessage(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Template{
		Template: &schedulerv1.Template{Revision: key.String(), Object: data},
	}})
}

func (s *session) sendAck(a ack) error {
	before, known := s.instances[a.uid]
	if known && a.durable && before.node == "" {
		s.instances[a.uid] = sent{node: a.node}
	}
	err := s.sendMessage(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Ack{
		Ack: &schedulerv1.BindingAck{Uid: string(a.uid), Durable: a.durable},
	}})
	if err != nil || a.durable || s.config.Instances.ByUID(a.uid) == nil {
		return err
	}
	// The binding was refused and the instance still exists, so the scheduler receives its state
	// again.
	delete(s.instances, a.uid)
	return s.sendInstance(a.uid)
}

// sendInstance sends the difference between the state of an instance that the scheduler has and
// the current state.
func (s *session) sendInstance(uid types.UID) error {
	in := s.config.Instances.ByUID(uid)
	before, known := s.instances[uid]
	if in == nil || in.DeletionTimestamp != nil && in.Spec.NodeName == "" {
		if !known {
			return nil
		}
		delete(s.instances, uid)
		return s.sendMessage(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Gone{
			Gone: &schedulerv1.InstanceGone{Uid: string(uid)},
		}})
	}
	if known && before.node == in.Spec.NodeName && before.ended == ended(in) {
		return s.sendStop(in, before)
	}
	if ok, err := s.sendTemplate(in); err != nil || !ok {
		return err
	}
	now := sent{node: in.Spec.NodeName, ended: ended(in), stop: before.stop}
	s.instances[uid] = now
	if err := s.sendMessage(message(in)); err != nil {
		return err
	}
	return s.sendStop(in, now)
}

// sendStop sends the deletion of an instance, once for each combination of grace period and
// force.
func (s *session) sendStop(in *rikv1alpha1.Instance, before sent) error {
	if in.DeletionTimestamp == nil || in.Spec.NodeName == "" ||
		!slices.Contains(in.Finalizers, rikv1alpha1.FinalizerNode) {
		return nil
	}
	now := order{grace: grace(in), force: instance.Forced(in)}
	if before.stop != nil && *before.stop == now {
		return nil
	}
	before.stop = &now
	s.instances[in.UID] = before
	return s.sendMessage(&schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Stop{
		Stop: &schedulerv1.Stop{Uid: string(in.UID), GraceSeconds: now.grace, Force: now.force},
	}})
}

func message(in *rikv1alpha1.Instance) *schedulerv1.SyncRequest {
	m := &schedulerv1.Instance{
		Uid: string(in.UID), Namespace: in.Namespace, Name: in.Name,
		Workload: in.Spec.Workload, Revision: in.Spec.Revision, Labels: in.Labels,
		CreatedUnixNanos: in.CreationTimestamp.UnixNano(),
	}
	if in.Spec.NodeName == "" {
		return &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Pending{Pending: m}}
	}
	m.NodeName, m.Phase, m.Ended = in.Spec.NodeName, string(in.Status.Phase), ended(in)
	return &schedulerv1.SyncRequest{Message: &schedulerv1.SyncRequest_Bound{Bound: m}}
}

// receive passes the scheduler's messages on until the stream ends.
func (s *session) receive() error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return fmt.Errorf("receiving from the scheduler: %w", err)
		}
		s.config.Metrics.received.Inc()
		s.pass(m)
	}
}

func (s *session) pass(m *schedulerv1.SyncResponse) {
	sink := s.config.Sink
	switch {
	case m.GetWelcome() != nil:
		s.config.Logger.Info("connected to the scheduler", "scheduler", m.GetWelcome().GetScheduler())
		sink.Welcomed()
	case m.GetBinding() != nil:
		b := m.GetBinding()
		sink.Bind(types.UID(b.GetUid()), instance.Binding{Node: b.GetNodeName(), HostPorts: b.GetHostPorts()})
	case m.GetUnplaced() != nil:
		u := m.GetUnplaced()
		sink.Explain(types.UID(u.GetUid()), instance.Unplaced{Reason: u.GetReason(), Message: u.GetMessage()})
	case m.GetObservation() != nil:
		s.passObservation(m.GetObservation())
	case m.GetNode() != nil:
		s.passReport(m.GetNode())
	case m.GetDisplace() != nil:
		sink.Displace(types.UID(m.GetDisplace().GetUid()), types.UID(m.GetDisplace().GetForUid()))
	}
}

func (s *session) passObservation(o *schedulerv1.Observation) {
	out := instance.Observation{
		Node: o.GetNodeName(), Sequence: o.GetSequence(),
		Phase: rikv1alpha1.InstancePhase(o.GetPhase()), Reason: o.GetReason(), Message: o.GetMessage(),
	}
	if data := o.GetStatus(); len(data) > 0 {
		out.Status = &rikv1alpha1.InstanceStatus{}
		if err := out.Status.Unmarshal(data); err != nil {
			s.config.Logger.Warn("ignoring the malformed details of an observation", "instance", o.GetUid(), "node", o.GetNodeName(), "err", err)
			out.Status = nil
		}
	}
	s.config.Sink.Observe(types.UID(o.GetUid()), out)
}

func (s *session) passReport(r *schedulerv1.NodeReport) {
	out := node.Report{Connected: r.GetConnected(), DiskPressure: r.GetDiskPressure(), NoNetwork: r.GetNoNetwork(), Labels: r.GetLabels(), Hold: holdOf(r.GetHold(), s.config.Term)}
	for _, t := range r.GetTroubles() {
		if out.Troubles == nil {
			out.Troubles = map[nodestate.TroubleKind]string{}
		}
		out.Troubles[nodestate.TroubleKind(t.GetKind())] = t.GetMessage()
	}
	if data := r.GetInfo(); len(data) > 0 {
		out.Status = &rikv1alpha1.NodeStatus{}
		if err := out.Status.Unmarshal(data); err != nil {
			s.config.Logger.Warn("ignoring the malformed facts of a node", "node", r.GetName(), "err", err)
			out.Status = nil
		} else {
			out.Status.Conditions = nil
		}
	}
	taints, err := node.ParseTaints(r.GetTaints())
	if err != nil {
		s.config.Logger.Warn("ignoring the malformed taints of a node", "node", r.GetName(), "err", err)
	}
	out.Taints = taints
	s.config.Sink.Report(r.GetName(), out)
}

// holdOf converts the confirmation that a node waits for to its form in the Node's status.
func holdOf(h *schedulerv1.Hold, term int64) *rikv1alpha1.NodeConfirmation {
	if h.GetId() == "" {
		return nil
	}
	out := &rikv1alpha1.NodeConfirmation{
		ID: h.GetId(), Reason: h.GetReason(), Instances: h.GetInstances(), Term: h.GetTerm(), Cluster: h.GetCluster(), Certificate: h.GetCertificate(),
		Unknown: slices.Clone(h.GetUnknown()),
	}
	if out.Reason == rikv1alpha1.ConfirmLowerTerm {
		out.ControllerTerm = term
	}
	return out
}
