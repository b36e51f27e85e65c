package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func record(uid string) Record {
	code := int32(3)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return Record{
		Version: Version, BootID: "boot",
		Instance: instance.Instance{UID: uid, Namespace: "ns", Name: "name", Template: rikv1alpha1.InstanceTemplate{
			Containers: []rikv1alpha1.Container{{Name: "main", Image: "busybox"}},
		}},
		Containers: map[string]Container{"main": {State: rikv1alpha1.ContainerExited, Attempt: 2, ExitCode: &code, FinishedAt: at}},
		Stop:       &Stop{Deadline: at},
	}
}

func TestRecordsSurviveTheStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	for _, uid := range []string{"a", "b", "c"} {
		if err := s.Put(record(uid)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // deleting a missing record is no error
		if err := s.Delete("b"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, path).Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Record{record("a"), record("c")}, got); diff != "" {
		t.Errorf("Load() (-want +got):\n%s", diff)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file = %v, %v; want 0600", info.Mode(), err)
	}
}

func TestPutsAtOnce(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	var group sync.WaitGroup
	for i := range 100 {
		group.Go(func() {
			if err := s.Put(record(fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	got, err := s.Load()
	if err != nil || len(got) != 100 {
		t.Errorf("Load() = %d records, %v; want 100", len(got), err)
	}
}

func TestNewerRecordIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	err := s.db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(bucket).Put([]byte("a"), []byte(`{"version": 99}`))
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(); !errors.Is(err, ErrNewer) {
		t.Errorf("Load() = %v, want %v", err, ErrNewer)
	}
}

func TestClosedStoreRefuses(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(record("a")); !errors.Is(err, ErrClosed) {
		t.Errorf("Put() = %v, want %v", err, ErrClosed)
	}
}

func TestBootID(t *testing.T) {
	t.Parallel()
	a, err := BootID()
	if err != nil || len(a) != 36 {
		t.Errorf("BootID() = %q, %v; want a UUID", a, err)
	}
}

// TestDamagedRecordsAreExplained covers a damaged page, at which bbolt ends the process.
func TestDamagedRecordsAreExplained(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pods.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if err := s.Put(record(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	for name, data := range map[string][]byte{
		"pages of zeros": append(append([]byte{}, whole[:2*page]...), make([]byte, len(whole)-2*page)...),
		"truncated":      whole[:3*page],
		"another file":   []byte("this is not a database"),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: Open() = %v, want ErrDamaged", name, err)
			continue
		}
		for _, want := range []string{path, "move it away", "starts the instances that must run again"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Open() = %v, want the text %q in it", name, err, want)
			}
		}
	}
}
