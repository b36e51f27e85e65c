package servers

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"rik.dev/rik/internal/rpc/nodev1"
	wire "rik.dev/rik/internal/rpc/servers"
)

func newRoster(holder string) *Roster {
	return New(Config{
		Client: fake.NewClientBuilder().Build(), Now: time.Now, Logger: slog.New(slog.DiscardHandler),
		Holder: func() (string, <-chan struct{}) { return holder, nil },
	})
}

func server(name string) wire.Server {
	return wire.Server{Name: name, API: "https://" + name + ":5000", Nodes: name + ":4997", Workers: name + ":4995", Peer: "https://" + name + ":4998"}
}

// TestJoinAndRemove follows a server from joining to removal, and its replacement.
func TestJoinAndRemove(t *testing.T) {
	t.Parallel()
	r := newRoster("")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(r.Register(t.Context(), server("a")))
	must(r.Join(t.Context(), server("b")))
	must(r.Join(t.Context(), server("b"))) // it asks again
	running := server("b")
	running.Identity, running.Member = "host-1", "7"
	must(r.Register(t.Context(), running))
	if err := r.Join(t.Context(), server("b")); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "rikctl server replace b") {
		t.Errorf("Join() of a running server's name = %v, want ErrTaken", err)
	}
	if err := r.Join(t.Context(), server("Not/A Name")); !errors.Is(err, ErrName) {
		t.Errorf("Join() = %v, want ErrName", err)
	}
	for range 2 {
		if s, err := r.Remove(t.Context(), "b"); err != nil || s.Removed == nil {
			t.Errorf("Remove() = %+v, %v", s, err)
		}
	}
	must(r.Register(t.Context(), running)) // it still runs
	all, err := r.All(t.Context())
	if err != nil || len(all) != 2 || all[1].Name != "b" || all[1].Removed == nil {
		t.Errorf("All() = %+v, %v, want b as removed", all, err)
	}
	if err := r.Join(t.Context(), server("b")); !errors.Is(err, ErrTaken) {
		t.Errorf("Join() while the server is being removed = %v, want ErrTaken", err)
	}
	for range 2 {
		must(r.Forget(t.Context(), "b"))
	}
	must(r.Join(t.Context(), server("b")))
	if _, err := r.Remove(t.Context(), "c"); !errors.Is(err, ErrUnknown) {
		t.Errorf("Remove() of an unknown server = %v, want ErrUnknown", err)
	}
}

// TestHandler refuses to remove the only server, and marks the active one in the list.
func TestHandler(t *testing.T) {
	t.Parallel()
	r := newRoster("host-1")
	a := server("a")
	a.Identity = "host-1"
	if err := errors.Join(r.Register(t.Context(), a)); err != nil {
		t.Fatal(err)
	}
	m := Remover{Roster: r, EmbeddedEtcd: true, Probe: func(_ context.Context, url string) error {
		if strings.Contains(url, "b:") {
			return errors.New("no answer")
		}
		return nil
	}}
	ask := func(method, path string) (any, error) {
		return m.serve(httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody))
	}
	if _, err := ask(http.MethodDelete, "/rik/servers/a"); !apierrors.IsConflict(err) {
		t.Errorf("removing the only server = %v, want a conflict", err)
	}
	if err := r.Register(t.Context(), server("b")); err != nil {
		t.Fatal(err)
	}
	r.SetWaiting(map[string]string{"b": "it waits"})
	answer, err := ask(http.MethodGet, "/rik/servers/")
	list, ok := answer.(*wire.List)
	if err != nil || !ok || len(list.Items) != 2 {
		t.Fatalf("GET = %+v, %v", answer, err)
	}
	if i := list.Items[0]; !i.Ready || !i.Active || i.Problem != "" {
		t.Errorf("the active server = %+v", i)
	}
	if i := list.Items[1]; i.Ready || i.Active || i.Problem != "it waits" {
		t.Errorf("the other server = %+v", i)
	}
	if _, err := ask(http.MethodDelete, "/rik/servers/c"); !apierrors.IsNotFound(err) {
		t.Errorf("removing an unknown server = %v, want not found", err)
	}
	if _, err := ask(http.MethodDelete, "/rik/servers/b"); err != nil {
		t.Errorf("removing a server = %v", err)
	}
	if _, err := ask(http.MethodPut, "/rik/servers/b"); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("PUT = %v", err)
	}
}

// TestFollow sends nodes the list of several servers without those that were removed, and nothing for
// a single one.
func TestFollow(t *testing.T) {
	t.Parallel()
	r := newRoster("host-2")
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan *nodev1.Servers)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Follow(ctx, func(m *nodev1.Servers) error { sent <- m; return nil })
	}()
	defer func() { cancel(); <-done }()
	b, c := server("b"), server("c")
	b.Identity = "host-2"
	removed := time.Now()
	c.Removed = &removed
	r.mu.Lock()
	r.servers = map[string]entry{"a": {server("a"), 3}, "b": {b, 5}, "c": {c, 4}}
	r.wakeLocked()
	r.mu.Unlock()
	m := <-sent
	if len(m.GetServers()) != 2 || m.GetActive() != "b" || m.GetRevision() != 5 || m.GetServers()[0].GetNodes() != "a:4997" {
		t.Errorf("sent %v", m)
	}
}
