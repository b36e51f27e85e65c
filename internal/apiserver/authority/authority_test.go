package authority

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/pki"
)

// TestOpen checks that an existing cluster gets a new authority only if the administrator accepts
// that, and that an existing authority stays.
func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := clusterid.Write(dir, clusterid.File{Identity: clusterid.Identity{ID: "known"}}); err != nil {
		t.Fatal(err)
	}
	if err := Discard(dir, first, errors.ErrUnsupported); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Discard() = %v, want the cause", err)
	}
	if _, err := Open(dir, false); err != nil {
		t.Errorf("the authority of a known cluster is gone: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, Dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, false); !errors.Is(err, pki.ErrMissing) {
		t.Errorf("Open() = %v, want ErrMissing", err)
	}
	if _, err := Open(dir, true); err != nil {
		t.Errorf("Open() that accepts new keys = %v", err)
	}
}

// TestOpenAtTheSameTime checks that programs that start at the same time use one authority.
func TestOpenAtTheSameTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hashes := make([]string, 4)
	var group sync.WaitGroup
	for i := range hashes {
		group.Go(func() {
			a, err := Open(dir, false)
			if err != nil {
				t.Error(err)
				return
			}
			hashes[i] = a.Hash()
		})
	}
	group.Wait()
	for _, hash := range hashes {
		if hash == "" || hash != hashes[0] {
			t.Errorf("the programs have the authorities %q, want one", hashes)
		}
	}
}

// TestDiscard checks that the authority of a refused start is removed.
func TestDiscard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := Discard(dir, a, errors.ErrUnsupported); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Discard() = %v, want the cause", err)
	}
	if _, err := pki.Load(filepath.Join(dir, Dir)); !errors.Is(err, pki.ErrMissing) {
		t.Errorf("after Discard(), Load() = %v, want ErrMissing", err)
	}
}
