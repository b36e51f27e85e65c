package nodeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/jointoken"
	"rik.dev/rik/internal/pki"
	wire "rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
)

// timeout is long enough for a busy machine under the race detector.
const timeout = time.Minute

// fixture is a server on loopback TLS with its own authority.
type fixture struct {
	server    *Server
	client    client.Client
	instances *index.Instances
	authority *pki.Authority
	tokens    *jointoken.Tokens
	address   string
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	return newFixtureOf(t, nil, objects...)
}

// newFixtureOf creates a fixture whose nodes receive a netmap.
func newFixtureOf(t *testing.T, network Network, objects ...client.Object) *fixture {
	t.Helper()
	w := unserved(t, network, objects...)
	w.serve(t)
	return w
}

// unserved creates a fixture without a listener.
func unserved(t *testing.T, network Network, objects ...client.Object) *fixture {
	t.Helper()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, rikv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		// The API server sets a UID, and the fake client does not.
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			o.SetUID(uuid.NewUUID())
			return c.Create(ctx, o, options...)
		},
	}).Build()
	w := &fixture{client: c, instances: index.NewInstances(), authority: authority, tokens: jointoken.New(c, authority, time.Now)}
	w.server, err = New(Config{Client: c, Reader: c, Informers: &informertest.FakeInformers{Scheme: scheme}, Instances: w.instances, Tokens: w.tokens, Authority: authority, Network: network, Version: "v9"})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *fixture) serve(t *testing.T) {
	t.Helper()
	certPEM, keyPEM, err := w.authority.IssueServer([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(append(certPEM, w.authority.CertificatePEM()...), keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(append(ServerOptions(), grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: w.authority.Pool(), ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS13,
	})))...)
	w.server.Register(g, false)
	go func() { _ = g.Serve(listener) }()
	t.Cleanup(g.Stop)
	w.address = listener.Addr().String()
}

// dial connects, with a node's certificate if pair is not nil.
func (w *fixture) dial(t *testing.T, pair *tls.Certificate) *grpc.ClientConn {
	t.Helper()
	config := &tls.Config{RootCAs: w.authority.Pool(), MinVersion: tls.VersionTLS13}
	if pair != nil {
		config.Certificates = []tls.Certificate{*pair}
	}
	conn, err := grpc.NewClient(w.address, append(nodev1.DialOptions(), grpc.WithTransportCredentials(credentials.NewTLS(config)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// join joins a machine and returns its certificate.
func (w *fixture) join(t *testing.T, node, machine string) (*tls.Certificate, error) {
	t.Helper()
	token, err := w.tokens.Create(t.Context(), jointoken.Options{})
	if err != nil {
		t.Fatal(err)
	}
	csr, key, err := pki.NewCSR(pkix.Name{CommonName: "root", Organization: []string{"system:masters"}})
	if err != nil {
		t.Fatal(err)
	}
	response, err := nodev1.NewJoinClient(w.dial(t, nil)).Join(t.Context(), &nodev1.JoinRequest{
		Token: token.Text(), NodeName: node, MachineId: machine, CsrPem: csr,
	})
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(response.GetCertificatePem(), key)
	return &pair, err
}

// link is the node's end of a connection.
type link struct {
	grpc.BidiStreamingClient[nodev1.NodeMessage, nodev1.ControllerMessage]

	client nodev1.NodeClient
	node   string
}

// connect opens the node's stream and reads the server's hello.
func (w *fixture) connect(t *testing.T, pair *tls.Certificate, node string) *link {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	client := nodev1.NewNodeClient(w.dial(t, pair))
	stream, err := client.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(helloOf(node, "")); err != nil {
		t.Fatal(err)
	}
	hello, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if hello.GetHello().GetVersion() != "v9" {
		t.Fatalf("the first message was %v, want a hello", hello)
	}
	eventually(t, func() error {
		if !slices.Contains(w.server.Connected(), node) {
			return fmt.Errorf("connected are %v, want %s", w.server.Connected(), node)
		}
		return nil
	})
	return &link{stream, client, node}
}

// helloOf returns the first message of a riklet.
func helloOf(node, run string) *nodev1.NodeMessage {
	return &nodev1.NodeMessage{Message: &nodev1.NodeMessage_Hello{Hello: &nodev1.NodeHello{NodeName: node, RunId: run, Protocol: nodev1.Protocol}}}
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.After(timeout)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatal(err)
		case <-tick.C:
		}
	}
}

func TestJoinIgnoresTheSubjectAsked(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	pair, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	if cn := pair.Leaf.Subject.CommonName; cn != "rik:node:node-1" {
		t.Errorf("the certificate's name is %q, want rik:node:node-1", cn)
	}
	if got := pair.Leaf.Subject.Organization; !slices.Equal(got, []string{rikv1alpha1.GroupNodes}) {
		t.Errorf("the certificate's organizations are %v, want only rik:nodes", got)
	}
	var node rikv1alpha1.Node
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "node-1"}, &node); err != nil {
		t.Fatal(err)
	}
	if got := node.Annotations[AnnotationMachine]; got != "machine-1" {
		t.Errorf("the Node belongs to machine %q, want machine-1", got)
	}
}

// TestJoinFault20: the published RIK used gethostname as the identity. Two hosts with the same
// name collided, and any host could register.
func TestJoinFault20(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	if _, err := w.join(t, "node-1", "machine-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.join(t, "node-1", "machine-1"); err != nil {
		t.Errorf("the same machine joins again: %v", err)
	}
	if _, err := w.join(t, "node-1", "machine-2"); status.Code(err) != codes.AlreadyExists {
		t.Errorf("another machine of the same name: %v, want AlreadyExists", err)
	}
	token := wire.Token{CAHash: w.authority.Hash()[len("sha256:"):], ID: "abcde", Secret: "0123456789abcdef0123"}
	csr, _, err := pki.NewCSR(pkix.Name{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = nodev1.NewJoinClient(w.dial(t, nil)).Join(t.Context(), &nodev1.JoinRequest{Token: token.Text(), NodeName: "x", MachineId: "m", CsrPem: csr})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a made-up token: %v, want Unauthenticated", err)
	}
}

// TestJoinRefusals: a permanent refusal by the API must not cause a retry.
func TestJoinRefusals(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	if _, err := w.join(t, strings.Repeat("n", 64), "machine-1"); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "63 characters, and has 64") {
		t.Errorf("a name of 64 characters: %v, want InvalidArgument that says how many are too many", err)
	}
	if _, err := w.join(t, strings.Repeat("n", 63), "machine-1"); err != nil {
		t.Errorf("a name of 63 characters: %v", err)
	}
	nodes := schema.GroupResource{Group: "rik.dev", Resource: "nodes"}
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"invalid":     {apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "n", nil), codes.InvalidArgument},
		"bad request": {apierrors.NewBadRequest("no"), codes.InvalidArgument},
		"forbidden":   {apierrors.NewForbidden(nodes, "n", errors.New("a policy")), codes.PermissionDenied},
		"away":        {apierrors.NewServiceUnavailable("starting"), codes.Unavailable},
		"timeout":     {context.DeadlineExceeded, codes.Unavailable},
	} {
		if got := status.Code(refusal(c.err, "later")); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// joinAs joins one riklet of a machine.
func (w *fixture) joinAs(t *testing.T, node, machine, key string) error {
	t.Helper()
	token, err := w.tokens.Create(t.Context(), jointoken.Options{})
	if err != nil {
		t.Fatal(err)
	}
	csr, _, err := pki.NewCSR(pkix.Name{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = nodev1.NewJoinClient(w.dial(t, nil)).Join(t.Context(), &nodev1.JoinRequest{
		Token: token.Text(), NodeName: node, MachineId: machine, InstallationKey: key, CsrPem: csr,
	})
	return err
}

// TestASecondRikletOfAMachineIsRefused: before this fix, the machine ID did not distinguish two
// riklets on one machine. Both were one node, and each ran all its instances.
func TestASecondRikletOfAMachineIsRefused(t *testing.T) {
	t.Parallel()
	own := &rikv1alpha1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "server", UID: "u-server"},
		Status:     rikv1alpha1.NodeStatus{Info: rikv1alpha1.NodeInfo{MachineID: "m", InstallationID: nodev1.InstallationID("server's")}},
	}
	older := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "older", UID: "u-older", Annotations: map[string]string{AnnotationMachine: "m"}}}
	w := newFixture(t, own, older)
	for _, step := range []struct {
		what, node, key string
		says            string // empty: it joins
	}{
		{"the first", "a", "1", ""},
		{"the same once more", "a", "1", ""},
		{"a second", "a", "2", "rikctl delete node a"},
		{"one that knows no key", "a", "", "rikctl delete node a"},
		{"a second with a name of its own", "b", "2", ""},
		{"one of the name that the server's own node has", "server", "2", "--node-name"},
		{"the server's own, as a node of its own", "server", "server's", ""},
		{"one that joined before keys", "older", "1", ""},
		{"a second after that", "older", "2", "--node-name"},
	} {
		err := w.joinAs(t, step.node, "m", step.key)
		switch {
		case step.says == "" && err != nil:
			t.Errorf("%s: %v, want it to join", step.what, err)
		case step.says != "" && (status.Code(err) != codes.AlreadyExists || !strings.Contains(err.Error(), step.says)):
			t.Errorf("%s: %v, want AlreadyExists that says %q", step.what, err, step.says)
		}
	}
	var node rikv1alpha1.Node
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "a"}, &node); err != nil {
		t.Fatal(err)
	}
	if got := node.Annotations[AnnotationInstallation]; got != nodev1.InstallationID("1") {
		t.Errorf("the Node belongs to installation %q, want the hash of the first's key", got)
	}
}

func TestTaken(t *testing.T) {
	t.Parallel()
	now := &connection{from: "192.0.2.7"}
	for name, tc := range map[string]struct {
		has, wants owner
		now        *connection
		says       string
	}{
		"nobody's":                            {owner{}, owner{"m", "i"}, nil, ""},
		"its own":                             {owner{"m", "i"}, owner{"m", "i"}, nil, ""},
		"its own, still connected":            {owner{"m", "i"}, owner{"m", "i"}, now, ""},
		"another machine's":                   {owner{"m", "i"}, owner{"n", "j"}, nil, "another machine"},
		"another riklet's that is connected":  {owner{"m", "i"}, owner{"m", "j"}, now, "from 192.0.2.7, on this machine"},
		"another riklet's that is silent":     {owner{"m", "i"}, owner{"m", "j"}, nil, "delete its Node (rikctl delete node n1)"},
		"an older riklet's that is connected": {owner{"m", ""}, owner{"m", "j"}, now, "is connected as node"},
		"an older riklet's that is silent":    {owner{"m", ""}, owner{"m", "j"}, nil, ""},
		"an older riklet's, again":            {owner{"m", ""}, owner{"m", ""}, now, ""},
	} {
		got := taken("n1", tc.has, tc.wants, tc.now)
		if (got == "") != (tc.says == "") || !strings.Contains(got, tc.says) {
			t.Errorf("%s: taken() = %q, want it to say %q", name, got, tc.says)
		}
	}
}

// TestACopiedCertificateDoesNotEndTheFirstConnection: before this fix, two riklets with one
// certificate ended each other's connection several times a second.
func TestACopiedCertificateDoesNotEndTheFirstConnection(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	pair, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	hello := func(run string) (grpc.BidiStreamingClient[nodev1.NodeMessage, nodev1.ControllerMessage], error) {
		stream, err := nodev1.NewNodeClient(w.dial(t, pair)).Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(helloOf("node-1", run))
		_, err = stream.Recv()
		return stream, err
	}
	first, err := hello("run-1")
	if err != nil {
		t.Fatal(err)
	}
	connected := func(want int) func() error {
		return func() error {
			if got := w.server.Connected(); len(got) != want {
				return fmt.Errorf("connected are %v, want %d", got, want)
			}
			return nil
		}
	}
	eventually(t, connected(1))
	for _, run := range []string{"run-2", ""} {
		if _, err := hello(run); status.Code(err) != codes.AlreadyExists || !strings.Contains(err.Error(), "from 127.0.0.1") {
			t.Errorf("a second riklet, of run %q: %v, want AlreadyExists that says where the first is", run, err)
		}
	}
	if _, err := hello("run-1"); err != nil {
		t.Errorf("the first connects anew: %v", err)
	}
	if _, err := first.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("its connection of before ended with %v, want Aborted", err)
	}
}

func TestConnectNeedsTheNodesOwnCertificate(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	pair, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	admin := issue(t, w.authority, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}})
	for name, tc := range map[string]struct {
		pair *tls.Certificate
		node string
		want codes.Code
	}{
		"none":         {nil, "node-1", codes.Unauthenticated},
		"another node": {pair, "node-2", codes.PermissionDenied},
		"not a node":   {admin, "node-1", codes.PermissionDenied},
		"no name":      {pair, "", codes.InvalidArgument},
	} {
		stream, err := nodev1.NewNodeClient(w.dial(t, tc.pair)).Connect(t.Context())
		if err == nil {
			_ = stream.Send(helloOf(tc.node, ""))
			_, err = stream.Recv()
		}
		if status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

func issue(t *testing.T, authority *pki.Authority, subject pkix.Name) *tls.Certificate {
	t.Helper()
	certPEM, keyPEM, err := authority.IssueClient(subject, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

func TestRenewKeepsTheName(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	pair, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	csr, _, err := pki.NewCSR(pkix.Name{CommonName: "rik:node:other"})
	if err != nil {
		t.Fatal(err)
	}
	nodes := nodev1.NewNodeClient(w.dial(t, pair))
	response, err := nodes.Renew(t.Context(), &nodev1.RenewRequest{CsrPem: csr})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(response.GetCertificatePem())
	renewed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if renewed.Subject.CommonName != "rik:node:node-1" {
		t.Errorf("renewed as %q, want rik:node:node-1", renewed.Subject.CommonName)
	}
	if err := w.client.Delete(t.Context(), &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Renew(t.Context(), &nodev1.RenewRequest{CsrPem: csr}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a deleted node renews: %v, want PermissionDenied", err)
	}
	if _, err := nodev1.NewNodeClient(w.dial(t, nil)).Renew(t.Context(), &nodev1.RenewRequest{CsrPem: csr}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("renewing without a certificate: %v, want Unauthenticated", err)
	}
}

// bound creates an instance on a node, of a revision that refers to a secret.
func bound(uid, node, revision string) *rikv1alpha1.Instance {
	return &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "i-" + uid, UID: types.UID(uid)},
		Spec:       rikv1alpha1.InstanceSpec{Workload: "web", Revision: revision, NodeName: node},
	}
}

func revisionWithSecret(name, secret string) *rikv1alpha1.WorkloadRevision {
	return &rikv1alpha1.WorkloadRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Template: rikv1alpha1.InstanceTemplate{Containers: []rikv1alpha1.Container{{
			Name: "main", Image: "web", EnvFrom: []rikv1alpha1.EnvFromSource{{Secret: secret}},
		}}},
	}
}

func ask(t *testing.T, stream *link, kind nodev1.Kind, name string) *nodev1.Object {
	t.Helper()
	get := &nodev1.Get{Kind: kind, Namespace: "shop", Name: name}
	if err := stream.Send(&nodev1.NodeMessage{Message: &nodev1.NodeMessage_Get{Get: get}}); err != nil {
		t.Fatal(err)
	}
	return nextObject(t, stream)
}

func nextObject(t *testing.T, stream *link) *nodev1.Object {
	t.Helper()
	message, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if message.GetObject() == nil {
		t.Fatalf("got %v, want an object", message)
	}
	return message.GetObject()
}

func TestANodeGetsOnlyWhatItsInstancesReferTo(t *testing.T) {
	t.Parallel()
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Data: map[string][]byte{"key": []byte(name)}}
	}
	w := newFixture(t, revisionWithSecret("web-1", "mine"), revisionWithSecret("web-2", "other"), secret("mine"), secret("other"))
	w.instances.Observe(bound("1", "node-1", "web-1"))
	w.instances.Observe(bound("2", "node-2", "web-2"))
	pair, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	stream := w.connect(t, pair, "node-1")

	mine := ask(t, stream, nodev1.Kind_KIND_REVISION, "web-1")
	var template rikv1alpha1.InstanceTemplate
	if err := template.Unmarshal(mine.GetData()); err != nil || !mine.GetFound() || len(template.Containers) != 1 {
		t.Errorf("its own revision: %v, %v", mine, err)
	}
	if got := ask(t, stream, nodev1.Kind_KIND_SECRET, "mine"); string(got.GetEntries()["key"]) != "mine" {
		t.Errorf("its own secret: %v", got)
	}
	for kind, name := range map[nodev1.Kind]string{nodev1.Kind_KIND_REVISION: "web-2", nodev1.Kind_KIND_SECRET: "other", nodev1.Kind_KIND_CONFIG_MAP: "any"} {
		if got := ask(t, stream, kind, name); got.GetError() == "" || got.GetFound() || len(got.GetEntries()) > 0 || len(got.GetData()) > 0 {
			t.Errorf("%v %s of another node: %v, want a refusal", kind, name, got)
		}
	}

	// A change is sent only while an instance refers to the object.
	changed := secret("mine")
	changed.Data["key"] = []byte("new")
	if err := w.client.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	key := objectKey{nodev1.Kind_KIND_SECRET, "shop", "mine"}
	w.server.changed(t.Context(), key)
	if got := nextObject(t, stream); string(got.GetEntries()["key"]) != "new" {
		t.Errorf("after the change: %v", got)
	}
	w.instances.Remove(bound("1", "node-1", "web-1"))
	w.server.changed(t.Context(), key)
	if got := nextObject(t, stream); got.GetError() == "" || len(got.GetEntries()) > 0 {
		t.Errorf("after the last instance went: %v, want a refusal", got)
	}
}

func TestABindingThatTheWatchShowsLateIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newFixture(t, revisionWithSecret("web-1", "mine"))
	pair, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	stream := w.connect(t, pair, "node-1")
	get := &nodev1.Get{Kind: nodev1.Kind_KIND_REVISION, Namespace: "shop", Name: "web-1"}
	if err := stream.Send(&nodev1.NodeMessage{Message: &nodev1.NodeMessage_Get{Get: get}}); err != nil {
		t.Fatal(err)
	}
	// The server has started to answer the request when the connection has noted it.
	c := w.server.connection("node-1")
	eventually(t, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.given) == 0 {
			return errors.New("the question has not arrived")
		}
		return nil
	})
	w.instances.Observe(bound("1", "node-1", "web-1"))
	if got := nextObject(t, stream); !got.GetFound() {
		t.Errorf("got %v, want the revision", got)
	}
}

func TestANewerStreamEndsTheOlder(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	pair, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	first := w.connect(t, pair, "node-1")
	old := w.server.connection("node-1")
	second := w.connect(t, pair, "node-1")
	if _, err := first.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the older stream ended with %v, want Aborted", err)
	}
	eventually(t, func() error {
		if c := w.server.connection("node-1"); c == nil || c == old {
			return errors.New("the newer stream is not the node's")
		}
		return nil
	})
	w.opened(t, second)
}

// TestBadTokensDoNotBlockGoodOnes: if one machine behind an address tries invalid tokens,
// another machine at the same address can still join.
func TestBadTokensDoNotBlockGoodOnes(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	good, err := w.tokens.Create(t.Context(), jointoken.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client := nodev1.NewJoinClient(w.dial(t, nil))
	bad := good
	bad.Secret = strings.Repeat("x", len(good.Secret))
	for i := range 3 * failuresAllowed {
		_, err := client.Join(t.Context(), &nodev1.JoinRequest{Token: bad.Text(), NodeName: "bad", MachineId: "m"})
		want := codes.Unauthenticated
		if i >= failuresAllowed {
			want = codes.ResourceExhausted
		}
		if status.Code(err) != want {
			t.Fatalf("bad token %d: %v, want %s", i, err, want)
		}
	}
	csr, _, err := pki.NewCSR(pkix.Name{CommonName: "any"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Join(t.Context(), &nodev1.JoinRequest{Token: good.Text(), NodeName: "good", MachineId: "m", CsrPem: csr}); err != nil {
		t.Errorf("a good token after bad ones: %v", err)
	}
	if err := w.tokens.Delete(t.Context(), good.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Join(t.Context(), &nodev1.JoinRequest{Token: good.Text(), NodeName: "late", MachineId: "m"}); err == nil {
		t.Error("a revoked token was accepted")
	}
}

func TestFailuresAreLimitedByAddress(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0).Add(time.Hour)
	f := newFailures(func() time.Time { return now })
	for range failuresAllowed {
		if !f.allowed("a") {
			t.Fatal("refused too early")
		}
		f.count("a")
	}
	if f.allowed("a") || !f.allowed("b") {
		t.Errorf("allowed(a) = %v, allowed(b) = %v, want false and true", f.allowed("a"), f.allowed("b"))
	}
	now = now.Add(failureWindow)
	if !f.allowed("a") {
		t.Error("still refused after the window")
	}
}
