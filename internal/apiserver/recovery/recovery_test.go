package recovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/datastore/checksum"
	"rik.dev/rik/internal/backup"
	"rik.dev/rik/internal/controllerterm"
)

var plain = backup.Recipients{Unencrypted: true}

// dataDir returns a data directory with the files of a server.
func dataDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("content of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func config(dir, endpoint string) datastore.Config {
	return datastore.Config{Endpoint: endpoint, Dir: filepath.Join(dir, "datastore"), Logger: slog.New(slog.DiscardHandler)}
}

// use opens the datastore and calls do with a client of it.
func use(t *testing.T, cfg datastore.Config, do func(*clientv3.Client)) {
	t.Helper()
	r := &restore{Target: Target{Datastore: cfg}}
	if err := r.with(t.Context(), func(c *clientv3.Client) error { do(c); return nil }); err != nil {
		t.Fatal(err)
	}
}

// fillStore stores objects, the identity, a Lease of term 8, an Event that expires, and keys that
// must not be restored.
func fillStore(t *testing.T, c *clientv3.Client, objects int) {
	t.Helper()
	store := func(key, value string, options ...clientv3.OpOption) {
		if err := put(t.Context(), c, backup.Entry{Key: []byte(key), Value: []byte(value)}, options...); err != nil {
			t.Fatal(err)
		}
	}
	for i := range objects {
		store(fmt.Sprintf("/registry/secrets/default/s%05d", i), "k8s:enc:secretbox:v1:"+strings.Repeat(fmt.Sprint(i, "\x00"), 100))
	}
	id, err := json.Marshal(clusterid.Identity{ID: "c1", Profile: "cluster"})
	if err != nil {
		t.Fatal(err)
	}
	store("/rik.dev/cluster", string(id))
	store("/registry/masterleases/10.0.0.1", "the former server")
	store("/registry/leases/kube-system/apiserver-abc", "the former server")
	store("/registry/configmaps/rik-system/server-one", "the former server")
	store("/registry/leases/rik-syncer/cluster-u1", "a proof")
	store("/registry/leases/default/app", "a user's own")
	transitions := int32(7)
	raised, err := raisedLease(nil, &backup.Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := decodeLease(raised)
	if err != nil {
		t.Fatal(err)
	}
	lease.Annotations, lease.Spec = nil, coordinationv1.LeaseSpec{LeaseTransitions: &transitions}
	lease.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	text, err := json.Marshal(lease)
	if err != nil {
		t.Fatal(err)
	}
	store(leaseKey, string(checksum.Add(leaseKey, text)))
	grant, err := c.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	store("/registry/events/default/e1", "an event", clientv3.WithLease(grant.ID))
}

func create(t *testing.T, dir string, c *clientv3.Client, endpoint string) []byte {
	t.Helper()
	var out bytes.Buffer
	_, err := Create(t.Context(), Source{Client: c, Dir: dir, Header: backup.Header{Version: "v1", Cluster: "c1", Profile: "cluster", Datastore: config(dir, endpoint).Kind()}},
		func(h backup.Header) (*backup.Writer, error) { return backup.NewWriter(&out, plain, h) })
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func opener(file []byte) Opener {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(file)), nil }
}

func target(dir, endpoint string) Target {
	return Target{Dir: dir, Datastore: config(dir, endpoint), Profile: "cluster", From: "file", Logger: slog.New(slog.DiscardHandler)}
}

// TestRestoreIntoEveryKind: a backup of each kind of datastore is restored into each kind.
func TestRestoreIntoEveryKind(t *testing.T) {
	t.Parallel()
	endpoints := map[string]string{"etcd": "", "sqlite": "sqlite://"}
	for from, source := range endpoints {
		for into, destination := range endpoints {
			t.Run(from+" into "+into, func(t *testing.T) {
				t.Parallel()
				dir := dataDir(t)
				var file []byte
				var revision int64
				use(t, config(dir, source), func(c *clientv3.Client) {
					fillStore(t, c, 1200)
					file = create(t, dir, c, source)
					answer, err := c.Get(t.Context(), markerKey)
					if err != nil {
						t.Fatal(err)
					}
					revision = answer.Header.Revision
				})
				to := t.TempDir()
				m, err := Restore(t.Context(), target(to, destination), opener(file), backup.Identities{})
				if err != nil {
					t.Fatal(err)
				}
				if m.Term != 8 || m.Revision > revision || m.Resources["secrets"] != 1200 || m.Datastore != from {
					t.Errorf("the manifest is %+v", m)
				}
				for _, name := range files {
					content, err := os.ReadFile(filepath.Join(to, filepath.FromSlash(name)))
					if err != nil || string(content) != "content of "+name {
						t.Errorf("%s = %q, %v", name, content, err)
					}
					if info, err := os.Stat(filepath.Join(to, filepath.FromSlash(name))); err == nil && info.Mode().Perm() != 0o600 {
						t.Errorf("%s has mode %v", name, info.Mode())
					}
				}
				if err := Unfinished(to); err != nil {
					t.Errorf("Unfinished() = %v", err)
				}
				use(t, config(to, destination), func(c *clientv3.Client) { wantRestored(t, c, m) })
			})
		}
	}
}

// wantRestored checks a restored datastore.
func wantRestored(t *testing.T, c *clientv3.Client, m *backup.Manifest) {
	t.Helper()
	answer, err := c.Get(t.Context(), leaseKey)
	if err != nil || len(answer.Kvs) != 1 {
		t.Fatalf("the Lease: %v, %v", answer, err)
	}
	if answer.Header.Revision < m.Revision+RevisionMargin {
		t.Errorf("the revision is %d, want at least %d", answer.Header.Revision, m.Revision+RevisionMargin)
	}
	lease, err := decodeLease(answer.Kvs[0].Value)
	if err != nil {
		t.Fatal(err)
	}
	if got := controllerterm.OfLease(lease.Annotations, lease.Spec.LeaseTransitions); got != 8+TermMargin+1 || lease.Spec.HolderIdentity != nil || !strings.HasSuffix(lease.Annotations[controllerterm.AnnotationRestored], m.ID) {
		t.Errorf("the term is %d of %v, annotations %v", got, lease.Spec, lease.Annotations)
	}
	keys := map[string]*mvccpb.KeyValue{}
	if err := walk(t.Context(), c, answer.Header.Revision, func(kv *mvccpb.KeyValue) error { keys[string(kv.Key)] = kv; return nil }); err != nil {
		t.Fatal(err)
	}
	for key, kv := range keys {
		if kv.ModRevision <= m.Revision+RevisionMargin && key != "/registry/health" {
			t.Errorf("%s has the revision %d, want more than %d", key, kv.ModRevision, m.Revision+RevisionMargin)
		}
	}
	for _, key := range []string{"/registry/masterleases/10.0.0.1", "/registry/leases/kube-system/apiserver-abc", "/registry/configmaps/rik-system/server-one", "/registry/leases/rik-syncer/cluster-u1", markerKey} {
		if keys[key] != nil {
			t.Errorf("%s was restored", key)
		}
	}
	for _, key := range []string{"/rik.dev/cluster", "/registry/leases/default/app", "/registry/secrets/default/s00000", "/registry/secrets/default/s01199"} {
		if keys[key] == nil {
			t.Errorf("%s is missing", key)
		}
	}
	if event := keys["/registry/events/default/e1"]; event == nil || event.Lease == 0 {
		t.Errorf("the event is %v, want one that expires", event)
	}
}

// TestAnInterruptedRestoreStartsNothing: after a restore that ended at any step, a server refuses
// to start, another backup is refused, and the same one can be restored.
func TestAnInterruptedRestoreStartsNothing(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	var file, another []byte
	use(t, config(dir, ""), func(c *clientv3.Client) {
		fillStore(t, c, 50)
		file, another = create(t, dir, c, ""), create(t, dir, c, "")
	})
	outside := func(t *testing.T) string { return "sqlite://" + filepath.Join(t.TempDir(), "outside.db") }
	for kind, endpoint := range map[string]func(*testing.T) string{
		"etcd": func(*testing.T) string { return "" }, "sqlite": func(*testing.T) string { return "sqlite://" }, "outside": outside,
	} {
		for _, step := range []string{"the record", "the claim", "the revision", "the objects", "the files"} {
			t.Run(kind+" after "+step, func(t *testing.T) {
				t.Parallel()
				to := target(t.TempDir(), endpoint(t))
				stopped := errors.New("stopped")
				to.after = func(s string) error {
					if s == step {
						return stopped
					}
					return nil
				}
				if _, err := Restore(t.Context(), to, opener(file), backup.Identities{}); !errors.Is(err, stopped) {
					t.Fatalf("Restore() = %v", err)
				}
				if err := Unfinished(to.Dir); !errors.Is(err, ErrUnfinished) {
					t.Errorf("Unfinished() = %v, want ErrUnfinished", err)
				}
				if step != "the record" {
					use(t, to.Datastore, func(c *clientv3.Client) {
						if err := Marked(t.Context(), c, "x"); !errors.Is(err, ErrUnfinished) {
							t.Errorf("Marked() = %v, want ErrUnfinished", err)
						}
					})
				}
				to.after = nil
				if _, err := Restore(t.Context(), to, opener(another), backup.Identities{}); !errors.Is(err, ErrNotEmpty) {
					t.Errorf("Restore() of another backup = %v, want ErrNotEmpty", err)
				}
				m, err := Restore(t.Context(), to, opener(file), backup.Identities{})
				if err != nil {
					t.Fatalf("Restore() again = %v", err)
				}
				use(t, to.Datastore, func(c *clientv3.Client) {
					if err := Marked(t.Context(), c, "x"); err != nil {
						t.Errorf("Marked() = %v", err)
					}
					if err := compare(t.Context(), c, opener(file), backup.Identities{}, m); err != nil {
						t.Errorf("compare() = %v", err)
					}
				})
				if _, err := Restore(t.Context(), to, opener(file), backup.Identities{}); !errors.Is(err, ErrNotEmpty) {
					t.Errorf("Restore() a second time = %v, want ErrNotEmpty", err)
				}
			})
		}
	}
}

// TestNothingIsOverwritten: a data directory or a datastore with content stays as it is, and a
// broken backup leaves an empty directory empty.
func TestNothingIsOverwritten(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	var file []byte
	use(t, config(dir, ""), func(c *clientv3.Client) {
		fillStore(t, c, 5)
		file = create(t, dir, c, "")
	})
	if _, err := Restore(t.Context(), target(dir, ""), opener(file), backup.Identities{}); !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), "cluster.json") {
		t.Errorf("Restore() into a used directory = %v, want ErrNotEmpty that names a file", err)
	}
	outside := "sqlite://" + filepath.Join(t.TempDir(), "outside.db")
	use(t, config(t.TempDir(), outside), func(c *clientv3.Client) {
		if err := put(t.Context(), c, backup.Entry{Key: []byte("/registry/secrets/a"), Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	})
	empty := t.TempDir()
	for range 2 {
		if _, err := Restore(t.Context(), target(empty, outside), opener(file), backup.Identities{}); !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), "outside.db") {
			t.Errorf("Restore() into a used datastore = %v, want ErrNotEmpty that names it", err)
		}
	}
	if _, err := os.Stat(filepath.Join(empty, RecordFile)); err == nil {
		t.Error("a refused restore left its record")
	}
	nothing := t.TempDir()
	if _, err := Restore(t.Context(), target(nothing, ""), opener(file[:len(file)-100]), backup.Identities{}); !errors.Is(err, backup.ErrTruncated) {
		t.Errorf("Restore() of a truncated backup = %v, want ErrTruncated", err)
	}
	kcp := target(nothing, "")
	kcp.Profile = "kcp"
	if _, err := Restore(t.Context(), kcp, opener(file), backup.Identities{}); err == nil || !strings.Contains(err.Error(), "rik server --restore") {
		t.Errorf("Restore() into a kcp = %v, want the right command", err)
	}
	if entries, err := os.ReadDir(nothing); err != nil || len(entries) > 0 {
		t.Errorf("a refused restore left %v, %v", entries, err)
	}
}

// TestCompareFindsEveryDifference: a key that is missing, added or changed.
func TestCompareFindsEveryDifference(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	var file []byte
	use(t, config(dir, ""), func(c *clientv3.Client) {
		fillStore(t, c, 5)
		file = create(t, dir, c, "")
	})
	to := target(t.TempDir(), "")
	m, err := Restore(t.Context(), to, opener(file), backup.Identities{})
	if err != nil {
		t.Fatal(err)
	}
	const key = "/registry/secrets/default/s00002"
	use(t, to.Datastore, func(c *clientv3.Client) {
		before, err := c.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		value := string(before.Kvs[0].Value)
		for name, change := range map[string]func(context.Context) error{
			"changed": func(ctx context.Context) error { _, err := c.Put(ctx, key, "x"); return err },
			"missing": func(ctx context.Context) error { _, err := c.Delete(ctx, key); return err },
			"added": func(ctx context.Context) error {
				_, err := c.Put(ctx, key, value)
				if err == nil {
					_, err = c.Put(ctx, "/registry/secrets/default/t", "x")
				}
				return err
			},
		} {
			if err := change(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := compare(t.Context(), c, opener(file), backup.Identities{}, m); !errors.Is(err, ErrDiffers) {
				t.Errorf("%s: compare() = %v, want ErrDiffers", name, err)
			}
			if _, err := c.Put(t.Context(), key, value); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Delete(t.Context(), "/registry/secrets/default/t"); err != nil {
				t.Fatal(err)
			}
		}
		if err := compare(t.Context(), c, opener(file), backup.Identities{}, m); err != nil {
			t.Errorf("compare() = %v", err)
		}
	})
}

func TestFloor(t *testing.T) {
	t.Parallel()
	m := &backup.Manifest{Header: backup.Header{Revision: 10, Created: time.Unix(1000, 0)}}
	if got, want := floor(m, time.Unix(1000+3600, 0)), int64(10+RevisionMargin+3600*RevisionsPerSecond); got != want {
		t.Errorf("floor() = %d, want %d", got, want)
	}
	if got, want := floor(m, time.Unix(0, 0)), int64(10+RevisionMargin); got != want {
		t.Errorf("floor() of a backup from the future = %d, want %d", got, want)
	}
}

func TestPagesStaySmall(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		limit      int64
		keys, size int
		want       int64
	}{{500, 500, 500 * 100, 500}, {500, 500, 500 << 20, 250}, {1, 1, 20 << 20, 1}, {250, 250, 250 << 20, 125}, {10, 10, 10 << 10, 500}, {5, 5, 5 << 20, 8}} {
		if got := nextLimit(tc.limit, tc.keys, tc.size); got != tc.want {
			t.Errorf("nextLimit(%d, %d, %d) = %d, want %d", tc.limit, tc.keys, tc.size, got, tc.want)
		}
	}
}
