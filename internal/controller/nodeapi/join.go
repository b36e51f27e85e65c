package nodeapi

import (
	"cmp"
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/jointoken"
	wire "rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Annotations on a Node that identify who joined under its name: the ID of the machine, and of
// the riklet's installation on it. Another machine or installation is refused. Deleting the
// Node frees the name.
const (
	AnnotationMachine      = "rik.dev/machine-id"
	AnnotationInstallation = "rik.dev/installation-id"
)

const maxMachineID = 128

// Join exchanges a token for a certificate.
func (s *Server) Join(ctx context.Context, request *nodev1.JoinRequest) (*nodev1.JoinResponse, error) {
	response, err := s.join(ctx, request)
	s.audit(joined(ctx, request, err), err)
	return response, err
}

func (s *Server) join(ctx context.Context, request *nodev1.JoinRequest) (*nodev1.JoinResponse, error) {
	from := remoteHost(ctx)
	// Other nodes behind the address may have valid tokens.
	if !s.failures.allowed(from) && !s.cfg.Tokens.Plausible(ctx, request.GetToken()) {
		return nil, status.Error(codes.ResourceExhausted, "too many refused join tokens from this address; try again in a minute")
	}
	if err := s.cfg.Tokens.Verify(ctx, request.GetToken()); err != nil {
		return nil, s.refuseToken(from, err, wire.RoleNode)
	}
	name := request.GetNodeName()
	if problems := nodestate.NodeNameProblems(name); len(problems) > 0 {
		return nil, status.Errorf(codes.InvalidArgument, "node name %q: %s", name, problems[0])
	}
	machine := request.GetMachineId()
	if machine == "" || len(machine) > maxMachineID {
		return nil, status.Errorf(codes.InvalidArgument, "a machine ID of 1 to %d characters is required", maxMachineID)
	}
	uid, err := s.claim(ctx, name, owner{machine, nodev1.InstallationID(request.GetInstallationKey())})
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Tokens.Use(ctx, request.GetToken()); err != nil {
		return nil, s.refuseToken(from, err, wire.RoleNode)
	}
	response, err := s.sign(request.GetCsrPem(), name, uid)
	if err == nil {
		s.log.Info("node joined", "node", name, "from", from)
	}
	return response, err
}

// refuseToken logs the reason of a refusal. The caller receives only the refusal.
func (s *Server) refuseToken(from string, err error, role wire.Role) error {
	if !errors.Is(err, jointoken.ErrRefused) {
		s.log.Error("checking a join token", "err", err)
		return status.Error(codes.Unavailable, "the join token cannot be checked at the moment")
	}
	s.failures.count(from)
	s.log.Warn("join token refused", "from", from, "err", err)
	create := "rikctl token create"
	if role == wire.RoleServer {
		create += " --server"
	}
	return status.Error(codes.Unauthenticated, jointoken.ErrRefused.Error()+": create a new one on the server with `"+create+"`")
}

// owner identifies the machine and installation that own a Node's name. A part that is not
// known is empty.
type owner struct{ machine, installation string }

// ownerOf returns the owner of a Node. If the annotations are missing, it uses the status that
// the node sent. They are missing if the node never joined (such as the server's own node), or
// if it joined before installations were distinguished.
func ownerOf(node *rikv1alpha1.Node) owner {
	return owner{
		machine:      cmp.Or(node.Annotations[AnnotationMachine], node.Status.Info.MachineID),
		installation: cmp.Or(node.Annotations[AnnotationInstallation], node.Status.Info.InstallationID),
	}
}

// claim binds the name to the machine and the installation durably, and returns the Node's UID.
func (s *Server) claim(ctx context.Context, name string, by owner) (types.UID, error) {
	var node rikv1alpha1.Node
	err := s.cfg.Client.Get(ctx, client.ObjectKey{Name: name}, &node)
	if apierrors.IsNotFound(err) {
		node = rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		by.write(&node)
		err = s.cfg.Client.Create(ctx, &node)
		if apierrors.IsAlreadyExists(err) { // another request was faster
			err = s.cfg.Client.Get(ctx, client.ObjectKey{Name: name}, &node)
		}
	}
	if err != nil {
		s.log.Error("claiming a node's name", "node", name, "err", err)
		return "", refusal(err, "the node's name cannot be checked at the moment")
	}
	if node.DeletionTimestamp != nil {
		return "", status.Errorf(codes.Unavailable, "node %q is being deleted; try again in a moment", name)
	}
	if refusal := taken(name, ownerOf(&node), by, s.connection(name)); refusal != "" {
		s.log.Warn("refused to join a node: its name is in use", "node", name, "from", remoteHost(ctx))
		return "", status.Error(codes.AlreadyExists, refusal)
	}
	base := node.DeepCopy()
	if !by.write(&node) {
		return node.UID, nil
	}
	if err := s.cfg.Client.Patch(ctx, &node, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		if apierrors.IsConflict(err) {
			return "", status.Error(codes.Aborted, "another node claimed the name at the same time; try again")
		}
		s.log.Error("claiming a node's name", "node", name, "err", err)
		return "", refusal(err, "the node's name cannot be claimed at the moment")
	}
	return node.UID, nil
}

// refusal translates an error of the API for a node. If a retry cannot succeed, the node is
// refused. Otherwise the status is Unavailable with the message now.
func refusal(err error, now string) error {
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return status.Error(codes.InvalidArgument, "the Node is refused: "+err.Error())
	case apierrors.IsForbidden(err):
		return status.Error(codes.PermissionDenied, "the Node is refused: "+err.Error())
	default:
		return status.Error(codes.Unavailable, now)
	}
}

// write sets the owner on a Node, and reports whether that changed it.
func (o owner) write(node *rikv1alpha1.Node) (changed bool) {
	for key, value := range map[string]string{AnnotationMachine: o.machine, AnnotationInstallation: o.installation} {
		if value != "" && node.Annotations[key] != value {
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, key, value)
			changed = true
		}
	}
	return changed
}

// taken says why a name is not available, and what to do. It is empty if the name is available.
// A Node belongs only to its owner, even while the owner is lost, because the owner's instances
// may keep running without a riklet. An owner without an installation ID (from before
// installations were distinguished) can be told apart only while it is connected. now is its
// connection, or nil.
func taken(name string, has, wants owner, now *connection) string {
	switch {
	case has.machine != "" && has.machine != wants.machine:
		return fmt.Sprintf("another machine has joined as node %q: start this machine with another --node-name; if the other machine does not exist any more, delete its Node (rikctl delete node %s)", name, name)
	case has.installation == wants.installation, has.installation == "" && now == nil:
		return ""
	case now != nil:
		return fmt.Sprintf("another riklet is connected as node %q from %s, on this machine or on one with the same machine ID. "+
			"Give this riklet its own --node-name. On the same machine also give it its own --state-dir, --run-dir and --cgroup-parent", name, now.from)
	default:
		return fmt.Sprintf("node %q belongs to another riklet, on this machine or on one with the same machine ID, or this riklet has lost its state directory. "+
			"Give this riklet its own --node-name. If the other riklet does not exist any more, delete its Node (rikctl delete node %s) and start this riklet again", name, name)
	}
}

// Renew issues a new certificate for the caller's own name.
func (f *listenerService) Renew(ctx context.Context, request *nodev1.RenewRequest) (*nodev1.JoinResponse, error) {
	caller, err := f.caller(ctx)
	if err != nil {
		return nil, err
	}
	if caller.name == "" {
		return nil, status.Error(codes.Unauthenticated, "a node certificate is required")
	}
	uid, err := f.checkNotRevoked(ctx, caller)
	var response *nodev1.JoinResponse
	if err == nil {
		response, err = f.sign(request.GetCsrPem(), caller.name, uid)
	}
	f.audit(renewed(ctx, caller), err)
	return response, err
}

// checkNotRevoked refuses a certificate whose Node was deleted, because the certificate was revoked with
// it. A certificate without the UID of a Node is valid for the Node of its name.
func (s *Server) checkNotRevoked(ctx context.Context, caller identity) (types.UID, error) {
	var node rikv1alpha1.Node
	err := s.cfg.Client.Get(ctx, client.ObjectKey{Name: caller.name}, &node)
	switch {
	case apierrors.IsNotFound(err):
		return "", errNoNode(caller.name)
	case err != nil:
		s.log.Error("looking up a node", "node", caller.name, "err", err)
		return "", status.Error(codes.Unavailable, "the node cannot be looked up at the moment")
	case node.DeletionTimestamp != nil:
		return "", errNoNode(caller.name)
	case caller.uid == "" || caller.uid == node.UID || string(caller.uid) == node.Annotations[rikv1alpha1.AnnotationConfirmedCertificate]:
		return node.UID, nil
	case string(caller.uid) == node.Annotations[rikv1alpha1.AnnotationUnconfirmedCertificate]:
		return "", status.Errorf(codes.FailedPrecondition, "the cluster has no record of the certificate of node %q: the node waits for `rikctl node confirm %s`", caller.name, caller.name)
	}
	return "", errNoNode(caller.name)
}

func errRevoked(node string) error {
	return status.Errorf(codes.PermissionDenied,
		"node %q was deleted from the cluster, which revoked its certificate. To join again, remove identity.pem from its state directory and start it with a token of `rikctl token create`", node)
}

// errNoNode covers two cases: a deleted Node, and a Node that the datastore has lost. The
// scheduler informs the node which case it is.
func errNoNode(node string) error {
	return status.Errorf(codes.PermissionDenied,
		"the cluster has no Node for the certificate of node %q. If the Node was deleted, its certificate is revoked. To join again, remove identity.pem from its state directory and start it with a token of `rikctl token create`. "+
			"If the datastore was restored or replaced, `rikctl get nodes` shows the node within a minute, and `rikctl node confirm %s` accepts it", node, node)
}

// sign issues a certificate that is valid only while the Node exists. Its serial number is the
// Node's UID, which no later Node of that name has.
func (s *Server) sign(csr []byte, name string, uid types.UID) (*nodev1.JoinResponse, error) {
	subject := pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + name, Organization: []string{rikv1alpha1.GroupNodes}, SerialNumber: string(uid)}
	certificate, err := s.cfg.Authority.SignCSR(csr, subject, s.cfg.Validity)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the certificate request: %v", err)
	}
	return &nodev1.JoinResponse{CertificatePem: certificate, CaPem: s.cfg.Authority.CertificatePEM()}, nil
}

// identity holds the facts about a node in its certificate and its first message.
type identity struct {
	name string
	// uid is the UID of the Node that the certificate was issued for. It is empty if the
	// certificate does not contain it.
	uid types.UID
	// run identifies the run of the riklet, as the riklet reports it.
	run string
}

// caller returns the node that the peer's certificate names. It is empty on a trusted listener.
func (f *listenerService) caller(ctx context.Context) (identity, error) {
	if f.trusted {
		return identity{}, nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return identity{}, status.Error(codes.Unauthenticated, "a node certificate is required")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return identity{}, status.Error(codes.Unauthenticated, "a node certificate is required")
	}
	subject := info.State.VerifiedChains[0][0].Subject
	name, err := nodeOf(subject)
	if err != nil {
		return identity{}, status.Error(codes.PermissionDenied, err.Error())
	}
	return identity{name: name, uid: types.UID(subject.SerialNumber)}, nil
}

// nodeOf returns the node's name from a verified certificate's subject.
func nodeOf(subject pkix.Name) (string, error) {
	const prefix = rikv1alpha1.NodeUserPrefix
	inGroup := false
	for _, o := range subject.Organization {
		inGroup = inGroup || o == rikv1alpha1.GroupNodes
	}
	cn := subject.CommonName
	if !inGroup || len(cn) <= len(prefix) || cn[:len(prefix)] != prefix {
		return "", fmt.Errorf("the certificate of %q does not belong to a node", cn)
	}
	return cn[len(prefix):], nil
}

func remoteHost(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return host
}

const (
	// failuresAllowed is the number of refused tokens that an address may have in failureWindow.
	// After that, a token of the address is verified only if it resembles an existing one. A
	// secret has 256 random bits, so the limit only keeps the log readable and the datastore
	// idle.
	failuresAllowed = 20
	failureWindow   = time.Minute
	// maxAddresses bounds the memory that callers can make the server use.
	maxAddresses = 4096
)

// failures counts refused tokens by address.
type failures struct {
	now func() time.Time

	mu     sync.Mutex
	since  time.Time
	counts map[string]int
}

func newFailures(now func() time.Time) *failures {
	return &failures{now: now, counts: map[string]int{}}
}

func (f *failures) allowed(from string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rotateLocked()
	return f.counts[from] < failuresAllowed
}

func (f *failures) count(from string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rotateLocked()
	if len(f.counts) < maxAddresses {
		f.counts[from]++
	}
}

func (f *failures) rotateLocked() {
	if now := f.now(); now.Sub(f.since) >= failureWindow {
		f.since = now
		clear(f.counts)
	}
}
