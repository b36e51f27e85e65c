package scheduler

import (
	"context"
	"crypto/x509"
	"net"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// gate authenticates peers. Peers of a trusted endpoint are inside the process and need no
// certificate.
type gate struct{ trusted bool }

// controller accepts only the controller's identity.
func (g gate) controller(ctx context.Context) error {
	if g.trusted {
		return nil
	}
	certificate, err := certificateOf(ctx)
	if err != nil {
		return err
	}
	if name := certificate.Subject.CommonName; name != rikv1alpha1.UserController {
		return status.Errorf(codes.PermissionDenied, "%q is not %s", name, rikv1alpha1.UserController)
	}
	return nil
}

// node accepts only the certificate of the named node. It returns the UID of the Node that the
// certificate was issued for. The UID is empty on a trusted endpoint, and if the authority does
// not write it into certificates.
func (g gate) node(ctx context.Context, name string) (uid types.UID, err error) {
	if g.trusted {
		return "", nil
	}
	certificate, err := certificateOf(ctx)
	if err != nil {
		return "", err
	}
	subject := certificate.Subject
	if !slices.Contains(subject.Organization, rikv1alpha1.GroupNodes) {
		return "", status.Errorf(codes.PermissionDenied, "%q is not a node: its certificate does not have the group %s", subject.CommonName, rikv1alpha1.GroupNodes)
	}
	if subject.CommonName != rikv1alpha1.NodeUserPrefix+name {
		return "", status.Errorf(codes.PermissionDenied, "%q must not register as node %q", subject.CommonName, name)
	}
	return types.UID(subject.SerialNumber), nil
}

// from returns where a peer connects from, for messages to people.
func (g gate) from(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if g.trusted || !ok || p.Addr == nil {
		return "the scheduler's own process"
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return host
}

func certificateOf(ctx context.Context) (*x509.Certificate, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "the connection has no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return nil, status.Error(codes.Unauthenticated, "a client certificate is required")
	}
	return info.State.VerifiedChains[0][0], nil
}
