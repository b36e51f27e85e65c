package nodeapi

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/jointoken"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/rpc/nodev1"
)

// hello tries to connect and returns the error of the stream.
func (w *fixture) hello(t *testing.T, pair *tls.Certificate, node string) error {
	t.Helper()
	stream, err := nodev1.NewNodeClient(w.dial(t, pair)).Connect(t.Context())
	if err == nil {
		_ = stream.Send(helloOf(node, ""))
		_, err = stream.Recv()
	}
	return err
}

// remove deletes a Node and reports that as the watch would.
func (w *fixture) remove(t *testing.T, name string) {
	t.Helper()
	var node rikv1alpha1.Node
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: name}, &node); err != nil {
		t.Fatal(err)
	}
	if err := w.client.Delete(t.Context(), &node); err != nil {
		t.Fatal(err)
	}
	w.server.nodeDeleted(&node)
}

// TestDeletedNodeIsRevoked: a node's certificate is revoked as soon as its Node is deleted. It
// stays revoked when another machine takes the name.
func TestDeletedNodeIsRevoked(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	old, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	stream := w.connect(t, old, "node-1")
	w.remove(t, "node-1")
	_, err = stream.Recv()
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "rikctl token create") {
		t.Errorf("the connection ended with %v, want PermissionDenied and the way back", err)
	}
	csr, _, err := pki.NewCSR(pkix.Name{})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		if err := w.hello(t, old, "node-1"); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s the old certificate connects with %v, want PermissionDenied", when, err)
		}
		_, err := nodev1.NewNodeClient(w.dial(t, old)).Renew(t.Context(), &nodev1.RenewRequest{CsrPem: csr})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s the old certificate is renewed with %v, want PermissionDenied", when, err)
		}
	}
	refused("without a Node")
	var node rikv1alpha1.Node
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "node-1"}, &node); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the Node is back: %v", err)
	}
	fresh, err := w.join(t, "node-1", "machine-2")
	if err != nil {
		t.Fatal(err)
	}
	w.connect(t, fresh, "node-1")
	refused("after its successor joined")
	if err := w.server.connection("node-1").ctx.Err(); err != nil {
		t.Errorf("the old certificate disturbed the new node: %v", err)
	}
}

// TestCertificateThatNamesNoNode: a certificate without a Node's UID, as older servers issued
// them, is valid for the Node of its name.
func TestCertificateThatNamesNoNode(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	old := issue(t, w.authority, pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + "node-1", Organization: []string{rikv1alpha1.GroupNodes}})
	if err := w.hello(t, old, "node-1"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("without a Node it connects with %v, want PermissionDenied", err)
	}
	if _, err := w.join(t, "node-1", "machine-1"); err != nil {
		t.Fatal(err)
	}
	w.connect(t, old, "node-1")
}

// TestJoinCountsUses: each join counts as a use of the token. A revoked token cannot be used to
// join.
func TestJoinCountsUses(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	token, err := w.tokens.Create(t.Context(), jointoken.Options{})
	if err != nil {
		t.Fatal(err)
	}
	join := func(node string) error {
		csr, _, err := pki.NewCSR(pkix.Name{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = nodev1.NewJoinClient(w.dial(t, nil)).Join(t.Context(), &nodev1.JoinRequest{
			Token: token.Text(), NodeName: node, MachineId: "machine-of-" + node, CsrPem: csr,
		})
		return err
	}
	for _, node := range []string{"a", "b", "a"} {
		if err := join(node); err != nil {
			t.Fatal(err)
		}
	}
	infos, err := w.tokens.List(t.Context())
	if err != nil || len(infos) != 1 || infos[0].Uses != 3 || infos[0].LastUsed == nil {
		t.Errorf("after three uses the tokens are %+v, %v", infos, err)
	}
	if err := w.tokens.Delete(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	if err := join("c"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("joining with a revoked token: %v, want Unauthenticated", err)
	}
	var node rikv1alpha1.Node
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "c"}, &node); err == nil {
		t.Error("a refused join left a Node")
	}
}
