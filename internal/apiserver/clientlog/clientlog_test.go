package clientlog_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"rik.dev/rik/internal/apiserver/clientlog"
)

// TestClientsOfKubernetes uses a client that Kubernetes' package creates, and a server that is no
// datastore. It fails if the package created its logger before clientlog changed the configuration.
func TestClientsOfKubernetes(t *testing.T) {
	var out bytes.Buffer
	clientlog.Set(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() { clientlog.Set(slog.DiscardHandler) })
	socket := filepath.Join(t.TempDir(), "socket")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer() // it implements no method
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) })
	defer group.Wait()
	defer server.Stop()
	prober, err := factory.CreateProber(storagebackend.Config{Type: storagebackend.StorageTypeETCD3, Transport: storagebackend.TransportConfig{
		ServerList: []string{"unix://" + socket},
	}})
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := prober.Probe(canceled); err == nil {
		t.Fatal("a canceled request has an answer")
	}
	if err := prober.Probe(t.Context()); err == nil {
		t.Fatal("a server without etcd's methods answers")
	}
	if err := prober.Close(); err != nil {
		t.Error(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "level=DEBUG") || !strings.Contains(lines[1], "level=WARN") {
		t.Errorf("the log has\n%s\nwant a debug message for the canceled request, and a warning for the other one", out.String())
	}
	for _, line := range lines {
		if !strings.Contains(line, `msg="retrying of unary invoker failed"`) || !strings.Contains(line, "method=/etcdserverpb.KV/Range") || !strings.Contains(line, "err=") {
			t.Errorf("the log has %q, which does not name the request and the error", line)
		}
	}
}
