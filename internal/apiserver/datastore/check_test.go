package datastore_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/datastore/checksum"
)

// TestRepairRemovesOnlyDamagedObjects: Check names the damaged object, and Repair saves and
// removes it. All other objects stay, and the datastore opens again.
func TestRepairRemovesOnlyDamagedObjects(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"", "sqlite://"} {
		t.Run(endpoint, func(t *testing.T) {
			t.Parallel()
			cfg := datastore.Config{Endpoint: endpoint, Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
			const objects = 1200 // more than a page of a list
			use(t, cfg, func(client *clientv3.Client) {
				for i := range objects {
					key := fmt.Sprintf("/registry/pods/%04d", i)
					// kine accepts creations as transactions only.
					_, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
						Then(clientv3.OpPut(key, string(checksum.Add(key, fmt.Appendf(nil, "content of %d.", i))))).Commit()
					if err != nil {
						t.Fatal(err)
					}
				}
			})
			want := checksum.Objects{Checked: objects}
			got, err := datastore.Check(t.Context(), cfg)
			if err != nil || got.Checked != want.Checked || len(got.Damaged) > 0 {
				t.Fatalf("Check() = %+v, %v; want %+v", got, err, want)
			}
			flipInFiles(t, cfg.Dir, "content of 777.")
			got, _ = datastore.Check(t.Context(), cfg)
			if got.Checked != objects-1 || !slices.Equal(got.Damaged, []string{"/registry/pods/0777"}) {
				t.Fatalf("Check() of a damaged object = %+v", got)
			}
			d, err := datastore.Open(t.Context(), cfg)
			if err == nil {
				_ = d.Close()
				t.Error("the damaged datastore was opened")
			} else if !strings.Contains(err.Error(), "/registry/pods/0777") || !strings.Contains(err.Error(), "rik repair") {
				t.Errorf("Open() = %v; want the object and the next step", err)
			}
			saved := t.TempDir()
			removed, err := datastore.Repair(t.Context(), cfg, filepath.Join(saved, "new"))
			if err != nil || len(removed) != 1 {
				t.Fatalf("Repair() = %v, %v", removed, err)
			}
			content, err := os.ReadFile(removed["/registry/pods/0777"])
			if err != nil || !strings.HasPrefix(string(content), "/registry/pods/0777\n") || !strings.Contains(string(content), "ontent of 777.") {
				t.Errorf("the saved object is %q, %v", content, err)
			}
			got, err = datastore.Check(t.Context(), cfg)
			if err != nil || got.Checked != objects-1 || len(got.Damaged) > 0 {
				t.Errorf("Check() after the repair = %+v, %v", got, err)
			}
		})
	}
}

func use(t *testing.T, cfg datastore.Config, do func(*clientv3.Client)) {
	t.Helper()
	d, err := datastore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	client, err := d.Endpoint().Client(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	do(client)
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// flipInFiles changes the first bit of every occurrence of text in the databases of a directory.
func flipInFiles(t *testing.T, dir, text string) {
	t.Helper()
	changed := 0
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.HasSuffix(path, ".wal") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for at := len(content); ; changed++ {
			if at = bytes.LastIndex(content[:at], []byte(text)); at < 0 {
				break
			}
			content[at] ^= 1
		}
		return os.WriteFile(path, content, 0o600)
	})
	if err != nil || changed == 0 {
		t.Fatalf("%d places changed: %v", changed, err)
	}
}
