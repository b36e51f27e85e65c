package apiserver_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/audit"
	"rik.dev/rik/internal/apiserver/listener"
	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
)

func auditEntries(t *testing.T, path string) []auditv1.Event {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var out []auditv1.Event
	for line := range strings.Lines(string(raw)) {
		var e auditv1.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("line %.200q: %v", line, err)
		}
		out = append(out, e)
	}
	return out
}

// awaitEntry waits for an audit entry, because a response may reach its client before it is
// recorded.
func awaitEntry(t *testing.T, path, what string, is func(auditv1.Event) bool) {
	t.Helper()
	poll.Until(t, apitest.Timeout, what, func(context.Context) error {
		for _, e := range auditEntries(t, path) {
			if is(e) {
				return nil
			}
		}
		return errors.New("no such entry")
	})
}

// TestUnauthenticatedRequestsCannotEraseTheAuditLog: requests without a credential use little space, however
// many and long they are. They do not displace entries of users.
func TestUnauthenticatedRequestsCannotEraseTheAuditLog(t *testing.T) {
	t.Parallel()
	s := apitest.Start(t)
	client := anonymousClient(t, s)
	authenticated := filepath.Join(s.DataDir, "audit.log")
	unauthenticated := audit.UnauthenticatedFile(authenticated)
	for _, size := range []int{900_000, 60_000} {
		for range 60 {
			want := http.StatusUnauthorized
			if size > 64<<10 {
				want = http.StatusRequestURITooLong
			}
			if got, _ := get(t, client, s.URL+"/api/v1/secrets?x="+strings.Repeat("x", size)); got != want {
				t.Fatalf("GET with a query of %d bytes = %d, want %d", size, got, want)
			}
		}
	}
	awaitEntry(t, unauthenticated, "a request without a credential is recorded", func(e auditv1.Event) bool {
		return e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusUnauthorized && e.ObjectRef.Resource == "secrets"
	})
	if info, err := os.Stat(unauthenticated); err != nil || info.Size() > 200<<10 {
		t.Errorf("the file of requests without a credential: %v, %v; want at most 200 KiB", info.Size(), err)
	}
	for _, e := range auditEntries(t, authenticated) {
		if e.User.Username == "" || len(e.RequestURI) > 4096 {
			t.Errorf("the audit log has an entry of %q with a URI of %d bytes", e.User.Username, len(e.RequestURI))
		}
	}
}

// TestAuditLogHasDeniedReadsAndLogs: denied reads and log requests are recorded. The test also
// shows that a deleted file is created again.
func TestAuditLogHasDeniedReadsAndLogs(t *testing.T) {
	t.Parallel()
	s := apitest.Start(t)
	path := filepath.Join(s.DataDir, "audit.log")
	client, err := kubernetes.NewForConfig(clientOf(t, s, "mallory", "nobodies"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("listing = %v, want forbidden", err)
	}
	awaitEntry(t, path, "the denied read is recorded", func(e auditv1.Event) bool {
		return e.User.Username == "mallory" && e.Verb == "list" && e.ResponseStatus.Code == http.StatusForbidden
	})
	admin, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	// There is no such instance. The entry contains the user.
	_ = admin.CoreV1().RESTClient().Get().AbsPath("/apis/rik.dev/v1alpha1/namespaces/default/instances/x/log").Do(t.Context()).Error()
	awaitEntry(t, path, "the reading of a log is recorded", func(e auditv1.Event) bool {
		return e.ObjectRef != nil && e.ObjectRef.Subresource == "log" && e.ObjectRef.Name == "x"
	})
	for _, e := range auditEntries(t, path) {
		if e.Verb == "get" && e.ObjectRef != nil && e.ObjectRef.Subresource == "" {
			t.Errorf("an ordinary read is recorded: %s", e.RequestURI)
		}
	}
}

// TestIdleConnectionsAreLimited: a client that opens connections and sends nothing, or has no
// credential, gets only a few. The server still serves other clients.
func TestIdleConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	const each = 20
	s := apitest.Start(t, func(c *apiserver.Config) {
		c.Connections = listener.NewConnections(listener.Budget{All: 200, Unauthenticated: 100, UnauthenticatedEach: each}, c.Logger)
	})
	address := strings.TrimPrefix(s.URL, "https://")
	// from dials from its own address, like another machine.
	from := func(ip string) func(context.Context, string, string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).DialContext
	}
	client := func(ip string, config *rest.Config) *kubernetes.Clientset {
		config = rest.CopyConfig(config)
		config.Dial = from(ip)
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	before := client("127.0.0.3", s.Config)
	ask := func(c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
		return err
	}
	if err := ask(before); err != nil {
		t.Fatal(err)
	}
	open := 0
	for i := range 300 {
		conn, err := from("127.0.0.3")(t.Context(), "tcp", address)
		if err != nil {
			continue // the kernel reported the refusal at once
		}
		t.Cleanup(func() { _ = conn.Close() })
		if i%2 == 0 { // half of them complete the handshake without a credential
			secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
			if secure.HandshakeContext(t.Context()) == nil {
				open++
			}
		}
	}
	if open > each {
		t.Errorf("%d connections of one address without a credential are open, want at most %d", open, each)
	}
	if err := ask(before); err != nil {
		t.Errorf("on a connection of before: %v", err)
	}
	for i := range 3 * each {
		if err := ask(client("127.0.0.2", s.Config)); err != nil {
			t.Fatalf("connection %d of another address: %v", i, fmt.Errorf("%w", err))
		}
	}
}
