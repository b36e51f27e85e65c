package apiserver_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
)

// tryStart starts a server on a directory and stops it before it serves.
func tryStart(t *testing.T, dir string, options ...apitest.Option) error {
	t.Helper()
	config := apiserver.Config{DataDir: dir, BindAddress: "127.0.0.1", Logger: slog.New(slog.DiscardHandler)}
	for _, o := range options {
		o(&config)
	}
	s, err := apiserver.New(t.Context(), config)
	if err != nil {
		return err
	}
	return s.Run(ended(t))
}

// ended returns a canceled context. A server that runs with it only releases its resources.
func ended(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// older changes a data directory and its embedded datastore to the state of a server without
// identities.
func older(t *testing.T, dir string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, clusterid.FileName)); err != nil {
		t.Fatal(err)
	}
	store, err := datastore.Open(t.Context(), datastore.Config{Dir: filepath.Join(dir, "datastore"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	client, err := store.Endpoint().Client(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	gone, err := client.Delete(t.Context(), "/rik.dev/cluster")
	if err != nil || gone.Deleted != 1 {
		t.Errorf("deleting the stored identity = %+v, %v", gone, err)
	}
	if err := errors.Join(client.Close(), store.Close()); err != nil {
		t.Fatal(err)
	}
}

func newCluster(c *apiserver.Config) { c.NewCluster = true }
func acceptKeys(c *apiserver.Config) { c.AcceptKeys = true }

func onSQLite(c *apiserver.Config) { c.DatastoreEndpoint = "sqlite://" }

// TestAnotherDatastoreIsRefused: a server does not accept an empty datastore, or that of
// another cluster, for its data directory.
func TestAnotherDatastoreIsRefused(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	store, away := filepath.Join(dir, "datastore"), filepath.Join(dir, "away")
	if err := tryStart(t, dir); err != nil {
		t.Fatal(err)
	}
	if err := tryStart(t, dir); err != nil {
		t.Fatalf("the second start: %v", err)
	}
	first, err := clusterid.Read(dir)
	if err != nil || first == nil {
		t.Fatalf("the identity of the directory = %v, %v", first, err)
	}
	refused := func(what string, options ...apitest.Option) {
		t.Helper()
		for range 2 { // the second attempt must not accept a file of the first
			err := tryStart(t, dir, options...)
			if !errors.Is(err, clusterid.ErrDatastore) || !strings.Contains(err.Error(), first.ID) || !strings.Contains(err.Error(), "--new-cluster") {
				t.Errorf("a start with %s = %v, want ErrDatastore with the cluster and the flag", what, err)
			}
		}
	}
	refused("another kind of datastore", onSQLite)
	if err := os.Rename(store, away); err != nil {
		t.Fatal(err)
	}
	refused("its datastore moved away")
	if err := os.RemoveAll(store); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(away, store); err != nil {
		t.Fatal(err)
	}
	if err := tryStart(t, dir); err != nil {
		t.Errorf("its own datastore again: %v", err)
	}
	if err := os.RemoveAll(store); err != nil {
		t.Fatal(err)
	}
	if err := tryStart(t, dir, newCluster); err != nil {
		t.Fatalf("a new cluster: %v", err)
	}
	if second, err := clusterid.Read(dir); err != nil || second.ID == first.ID {
		t.Errorf("the new cluster is %v, %v, want another ID than %s", second, err, first.ID)
	}
}

// TestMissingAndForeignKeysAreRefused: missing keys are not created again while the cluster has
// objects.
func TestMissingAndForeignKeysAreRefused(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := tryStart(t, dir); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := tryStart(t, other); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		files []string
	}{
		{"encryption", []string{"encryption.yaml"}},
		{"tokens", []string{"pki/service-account.key"}},
		{"authority", []string{"pki/ca.crt", "pki/ca.key"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kept := map[string][]byte{}
			for _, f := range tc.files {
				data, err := os.ReadFile(filepath.Join(dir, f))
				if err != nil {
					t.Fatal(err)
				}
				kept[f] = data
				if err := os.Remove(filepath.Join(dir, f)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				err := tryStart(t, dir)
				if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, tc.files[0])) || !strings.Contains(err.Error(), "backup") {
					t.Errorf("a start without %v = %v, want an error that names the file and a backup", tc.files, err)
				}
			}
			for _, f := range tc.files { // of another cluster
				data, err := os.ReadFile(filepath.Join(other, f))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, f), data, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := tryStart(t, dir); !errors.Is(err, clusterid.ErrKeys) || !strings.Contains(err.Error(), "--accept-keys") {
				t.Errorf("a start with the keys of another cluster = %v, want ErrKeys", err)
			}
			for f, data := range kept {
				if err := os.WriteFile(filepath.Join(dir, f), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := tryStart(t, dir); err != nil {
				t.Errorf("a start with its own keys again: %v", err)
			}
		})
	}
	for _, f := range []string{"encryption.yaml", "pki/ca.crt", "pki/ca.key"} {
		if err := os.Remove(filepath.Join(dir, f)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tryStart(t, dir, acceptKeys); err != nil {
		t.Errorf("a start that accepts a new key: %v", err)
	}
	if err := tryStart(t, dir); err != nil {
		t.Errorf("the start after it: %v", err)
	}
}

// TestDamagedKeysAreExplained: the error for a damaged key file names the file and the next
// step.
func TestDamagedKeysAreExplained(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := tryStart(t, dir); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"encryption.yaml", "pki/service-account.key", "pki/ca.key", "pki/ca.crt"} {
		path := filepath.Join(dir, f)
		kept, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, damaged := range []string{"", "}{ no longer what it was"} {
			if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := tryStart(t, dir); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "estore") || !strings.Contains(err.Error(), "backup") {
				t.Errorf("a start with the content %q in %s = %v, want an error with the file and a backup", damaged, f, err)
			}
		}
		if err := os.WriteFile(path, kept, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := tryStart(t, dir); err != nil {
		t.Errorf("a start with the files of before: %v", err)
	}
}

// TestAFurtherEncryptionKeyIsNoOtherCluster: a key rotation, which adds a key before the
// existing one, is accepted.
func TestAFurtherEncryptionKeyIsNoOtherCluster(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := tryStart(t, dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "encryption.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	further := strings.Replace(string(data), "      keys:\n", "      keys:\n      - name: second\n        secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n", 1)
	if further == string(data) {
		t.Fatalf("the file has another form than this test knows:\n%s", data)
	}
	if err := os.WriteFile(path, []byte(further), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tryStart(t, dir); err != nil {
		t.Errorf("a start with a further key: %v", err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tryStart(t, dir); !errors.Is(err, clusterid.ErrKeys) {
		t.Errorf("a start without the key that was added = %v, want ErrKeys: Secrets may have been written with it", err)
	}
}

// TestAnOlderDatastoreGetsItsIdentity: the datastore of an older server without identities gets
// one, if its objects belong to the authority of the data directory.
func TestAnOlderDatastoreGetsItsIdentity(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := apitest.Start(t, in(dir))
	poll.Until(t, apitest.Timeout, "the root certificate is published", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().ConfigMaps("kube-system").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	older(t, dir)
	if err := tryStart(t, dir); err != nil {
		t.Errorf("a start on an older datastore: %v", err)
	}
	if f, err := clusterid.Read(dir); err != nil || f == nil {
		t.Errorf("its identity = %v, %v", f, err)
	}
	older(t, dir)
	for _, f := range []string{"pki/ca.crt", "pki/ca.key"} {
		if err := os.Remove(filepath.Join(dir, f)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tryStart(t, dir); err == nil || !strings.Contains(err.Error(), "backup") {
		t.Errorf("a start on an older datastore without its authority = %v", err)
	}
}

// TestARefusedStartLeavesNothingOfItsKeys: a refused start leaves no credentials of a wrong
// authority.
func TestARefusedStartLeavesNothingOfItsKeys(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := tryStart(t, dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, clusterid.FileName)); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.LoadOrCreate(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	if err := tryStart(t, dir, func(c *apiserver.Config) { c.Authority = other }); !errors.Is(err, clusterid.ErrKeys) {
		t.Errorf("a start with another authority = %v, want ErrKeys", err)
	}
	after, err := os.ReadFile(filepath.Join(dir, "admin.kubeconfig"))
	if err != nil || string(after) != string(before) {
		t.Errorf("the refused start replaced admin.kubeconfig (%v)", err)
	}
	if err := tryStart(t, dir); err != nil {
		t.Errorf("the next start: %v", err)
	}
}

// TestFilesOfOthersModes: keys that other users can read or replace are refused. Directories
// are made private.
func TestFilesOfOthersModes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := tryStart(t, dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "node-token"), []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	chmod := func(name string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"encryption.yaml": 0o666, "pki/service-account.key": 0o644, "pki/ca.key": 0o640} {
		chmod(name, mode)
		if err := tryStart(t, dir); !errors.Is(err, pki.ErrExposed) || !strings.Contains(err.Error(), "chmod 0600 "+filepath.Join(dir, name)) {
			t.Errorf("a start with %s of mode %o = %v, want ErrExposed with the command", name, mode, err)
		}
		chmod(name, 0o600)
	}
	chmod(".", 0o777)
	if err := tryStart(t, dir); !errors.Is(err, apiserver.ErrExposed) || !strings.Contains(err.Error(), "chmod go-w "+dir) {
		t.Errorf("a start in a directory that everyone may write = %v, want ErrExposed with the command", err)
	}
	chmod(".", 0o755)
	want := map[string]os.FileMode{"pki": 0o700, "datastore": 0o700, "node-token": 0o600, "admin.kubeconfig": 0o600, "config.yaml": 0o600, "pki/server.key": 0o600}
	for name := range want {
		chmod(name, 0o777)
	}
	if err := tryStart(t, dir); err != nil {
		t.Fatal(err)
	}
	for name, mode := range want {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %o", name, info.Mode(), err, mode)
		}
	}
}
