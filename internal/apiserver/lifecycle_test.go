package apiserver_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/testkit/apiprocess"
	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
)

func in(dir string) apitest.Option { return func(c *apiserver.Config) { c.DataDir = dir } }

func TestRestartKeepsDataAndCredentials(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := apiprocess.Data(root)
	first := apitest.Start(t, in(dir))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"password": plaintext}}
	if _, err := first.Client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Fatalf("stopping the first server: %v", err)
	}
	if holds(t, filepath.Join(dir, "datastore"), plaintext) {
		t.Error("the secret's value is on disk in the clear")
	}
	if !holds(t, filepath.Join(dir, "datastore"), "/registry/secrets/default/s") {
		t.Error("the secret's key is not on disk: the test looks in the wrong place")
	}
	assertNoSockets(t, dir)

	second := apiprocess.StartOn(t, root, apiprocess.Cluster)
	got, err := second.Client.CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("after the restart: %v", err)
	}
	if string(got.Data["password"]) != plaintext {
		t.Errorf("secret = %q, want %q", got.Data["password"], plaintext)
	}
	if !bytes.Equal(first.CAPEM, second.CAPEM) {
		t.Error("the restart made another authority")
	}
}

const plaintext = "correct horse battery staple"

func holds(t *testing.T, dir, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || bytes.Contains(content, []byte(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func assertNoSockets(t *testing.T, dir string) {
	t.Helper()
	for _, fields := range rows(t, "/proc/net/unix") {
		if len(fields) > 7 && strings.HasPrefix(fields[7], dir) {
			t.Errorf("socket %s is still there", fields[7])
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "datastore", "run")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory of sockets after the stop: %v, want none", err)
	}
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := apitest.Start(t, in(apiprocess.Data(root)), func(c *apiserver.Config) { c.DatastoreEndpoint = "sqlite://" })
	namespace := s.Namespace(t)
	maps := s.Client.CoreV1().ConfigMaps(namespace)
	watch, err := maps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=kept"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if _, err := maps.Create(t.Context(), configMap("kept"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if event, ok := <-watch.ResultChan(); !ok || event.Object.(*corev1.ConfigMap).Name != "kept" {
		t.Errorf("watch delivered %v, want the configmap", event)
	}
	if _, err := os.Stat(filepath.Join(s.DataDir, "datastore", "state.db")); err != nil {
		t.Errorf("looking for the database: %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	again := apiprocess.StartOn(t, root, apiprocess.SQLite)
	if _, err := again.Client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

func TestSecondServerIsRefused(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	logger := slog.New(slog.DiscardHandler)
	_, err := apiserver.New(t.Context(), apiserver.Config{DataDir: s.DataDir, BindAddress: "127.0.0.1", Logger: logger})
	if !errors.Is(err, apiserver.ErrLocked) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second server on %s = %v, want ErrLocked with the process id", s.DataDir, err)
	}

	_, text, err := net.SplitHostPort(strings.TrimPrefix(s.URL, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	_, err = apiserver.New(t.Context(), apiserver.Config{DataDir: dir, BindAddress: "127.0.0.1", Port: port, Logger: logger})
	want := "process " + strconv.Itoa(os.Getpid())
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--port") {
		t.Errorf("second server on port %d = %v, want an error naming %q and --port", port, err, want)
	}
	// A refused start has released its resources.
	_, err = apiserver.New(t.Context(), apiserver.Config{DataDir: dir, BindAddress: "127.0.0.1", Port: port, Logger: logger})
	if errors.Is(err, apiserver.ErrLocked) {
		t.Errorf("after a refused start: %v", err)
	}
}

func TestProfileIsFixed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "profile"), []byte("kcp\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := apiserver.New(t.Context(), apiserver.Config{DataDir: dir, BindAddress: "127.0.0.1", Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, apiserver.ErrProfile) {
		t.Errorf("profile cluster on a kcp directory = %v, want ErrProfile", err)
	}
}

func TestRoutesAndLegacyPort(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	body := func(path string) string {
		raw, err := s.Client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		if err != nil {
			return err.Error()
		}
		return string(raw)
	}
	for _, path := range []string{"/api/v0/workloads.list", "/api/v1/instances.list", "/ui/x"} {
		if got, want := body(path), "rik:admin GET "+path; got != want {
			t.Errorf("GET %s = %q, want %q", path, got, want)
		}
		if status, _ := get(t, anonymousClient(t, s), s.URL+path); status != 401 {
			t.Errorf("anonymous GET %s = %d, want 401", path, status)
		}
	}
	if raw, err := s.Client.Discovery().RESTClient().Get().AbsPath("/panic").DoRaw(t.Context()); err == nil {
		t.Errorf("a panicking route answered %q", raw)
	}
	if status, _ := get(t, anonymousClient(t, s), s.URL+"/livez"); status != 200 {
		t.Errorf("after a panic, GET /livez = %d", status)
	}
	assertLegacy(t, "http://"+s.API.LegacyAddress().String())
}

func assertLegacy(t *testing.T, base string) {
	t.Helper()
	if status, body := get(t, http.DefaultClient, base+"/api/v0/workloads.list"); status != 200 || body != "rik:legacy GET /api/v0/workloads.list" {
		t.Errorf("legacy GET = %d %q", status, body)
	}
	for _, path := range []string{"/ui/x", "/api/v1/secrets", "/apis", "/"} {
		if status, _ := get(t, http.DefaultClient, base+path); status != 404 {
			t.Errorf("legacy GET %s = %d, want 404", path, status)
		}
	}
	for header, value := range map[string]string{"Origin": "https://evil.example", "Host": "evil.example"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/api/v0/workloads.create", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(header, value)
		if header == "Host" {
			request.Host = value
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusForbidden {
			t.Errorf("legacy POST with %s: %s = %d, want 403", header, value, response.StatusCode)
		}
	}
}

func TestRunWithCanceledContextReleases(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := apiprocess.Data(root)
	cfg := apiserver.Config{DataDir: dir, BindAddress: "127.0.0.1", Logger: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	server, err := apiserver.New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := server.Run(ctx); err != nil {
		t.Errorf("Run() = %v", err)
	}
	assertNoSockets(t, dir)
	apiprocess.StartOn(t, root, apiprocess.Cluster)
}

// TestReadyStaysReady: Kubernetes' controllers start once the server is ready. Their informers
// must not be part of the server's readiness.
func TestReadyStaysReady(t *testing.T) {
	t.Parallel()
	s := apiprocess.Start(t)
	client, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	poll.Until(t, apitest.Timeout, "the controllers work", func(ctx context.Context) error {
		for range 50 { // without a pause, because the gap was short
			body, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "").DoRaw(ctx)
			if err != nil && strings.Contains(string(body)+err.Error(), "[-]informer-sync") {
				t.Errorf("the server is not ready any more: %s%v", body, err)
				return nil
			}
		}
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}
