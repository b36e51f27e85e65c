package dircache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func open(tb testing.TB, root string) *Cache {
	tb.Helper()
	s, err := Open(root, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// filled writes one file into an item.
func filled(_ context.Context, dir string) error {
	return os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600)
}

// requireItems fails the test unless exactly these items exist, and no temporary files.
func requireItems(tb testing.TB, s *Cache, want ...string) {
	tb.Helper()
	for dir, want := range map[string][]string{itemsDir: want, tmpDir: nil} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			tb.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			tb.Errorf("%s (-want +got):\n%s", dir, diff)
		}
	}
}

func TestTakeReleaseCollect(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "s"))
	for _, user := range []string{"a", "b", "a"} {
		dir, err := s.Take(t.Context(), user, "k", filled)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(data) != "x" {
			t.Fatalf("the item has %q, %v", data, err)
		}
	}
	if users, err := s.Users(); err != nil || !cmp.Equal(users, []string{"a", "b"}) {
		t.Errorf("Users = %v, %v", users, err)
	}
	for _, user := range []string{"a", "a", "stranger", "b"} {
		if err := errors.Join(s.Collect(t.Context(), 0), s.Release(user)); err != nil {
			t.Fatal(err)
		}
		requireItems(t, s, "k") // b has a pin until the end
	}
	if err := s.Collect(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	requireItems(t, s, "k") // used a moment ago
	if err := s.Collect(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	requireItems(t, s)
}

func TestFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "s"))
	reason := errors.New("reason")
	_, err := s.Take(t.Context(), "a", "k", func(ctx context.Context, dir string) error {
		return errors.Join(filled(ctx, dir), reason)
	})
	if !errors.Is(err, reason) {
		t.Errorf("Take = %v, want %v", err, reason)
	}
	requireItems(t, s)
	if users, _ := s.Users(); len(users) != 0 {
		t.Errorf("pinned by %v", users)
	}
	if _, ok, err := s.Pin("a", "k"); ok || err != nil {
		t.Errorf("Pin = %v, %v; want no item", ok, err)
	}
	if users, _ := s.Users(); len(users) != 0 {
		t.Errorf("pinned by %v", users)
	}
}

func TestBadNames(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "s"))
	for _, bad := range []string{"", ".", "..", "../x", "a/b", "-x", ".x", "a\x00b"} {
		if _, err := s.Take(t.Context(), bad, "k", filled); !errors.Is(err, ErrInvalidName) {
			t.Errorf("user %q: %v", bad, err)
		}
		if _, err := s.Take(t.Context(), "u", bad, filled); !errors.Is(err, ErrInvalidName) {
			t.Errorf("key %q: %v", bad, err)
		}
		if err := s.Release(bad); !errors.Is(err, ErrInvalidName) {
			t.Errorf("Release(%q) = %v", bad, err)
		}
	}
	requireItems(t, s)
}

// A caller that gives up does not affect the others. When the last one gives up, the work is
// canceled.
func TestConcurrentCallers(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "s"))
	var runs atomic.Int32
	begun, proceed := make(chan struct{}), make(chan struct{})
	work := func(ctx context.Context, dir string) error {
		if runs.Add(1) == 1 {
			close(begun)
		}
		select {
		case <-proceed:
			return filled(ctx, dir)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	impatient, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := s.Take(impatient, "impatient", "k", work)
		first <- err
	}()
	<-begun
	var wait sync.WaitGroup
	joined := make(chan struct{}, 8)
	for _, user := range []string{"a", "b", "c"} {
		wait.Go(func() {
			joined <- struct{}{}
			if _, err := s.Take(t.Context(), user, "k", work); err != nil {
				t.Errorf("%s: %v", user, err)
			}
		})
	}
	for range 3 {
		<-joined
	}
	// The pins show that all three calls have begun.
	for users := []string(nil); len(users) < 4; users, _ = s.Users() {
	}
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the impatient got %v", err)
	}
	close(proceed)
	wait.Wait()
	if users, err := s.Users(); err != nil || !cmp.Equal(users, []string{"a", "b", "c"}) {
		t.Errorf("Users = %v, %v", users, err)
	}
	requireItems(t, s, "k")
}

func TestOpenAfterACrash(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "s")
	s := open(t, root)
	if _, err := s.Take(t.Context(), "a", "k", filled); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(root, nil); !errors.Is(err, ErrLocked) {
		t.Errorf("a second Open = %v, want %v", err, ErrLocked)
	}
	if err := os.MkdirAll(s.path(tmpDir, "new-7", "item"), 0o700); err != nil {
		t.Fatal(err)
	}
	// A pin of an item that was never completed.
	if err := os.WriteFile(s.path(pinsDir, "a", "unmade"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Take(t.Context(), "b", "k", filled); !errors.Is(err, ErrClosed) {
		t.Errorf("Take after Close = %v, want %v", err, ErrClosed)
	}
	s = open(t, root)
	if err := s.Collect(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	requireItems(t, s, "k")
	if err := errors.Join(s.Release("a"), s.Release("b"), s.Collect(t.Context(), 0)); err != nil {
		t.Fatal(err)
	}
	requireItems(t, s)
}

// With any order of takes, releases and collections, no user loses a pinned item.
func TestPinnedItemsStay(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "s"))
	stop := make(chan struct{})
	collected := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				collected <- nil
				return
			default:
				if err := s.Collect(context.Background(), 0); err != nil {
					collected <- err
					return
				}
			}
		}
	}()
	var wait sync.WaitGroup
	for _, user := range []string{"a", "b", "c", "d"} {
		wait.Go(func() {
			for range 20 {
				dir, err := s.Take(t.Context(), user, "k", filled)
				if err == nil {
					_, err = os.ReadFile(filepath.Join(dir, "f"))
				}
				if err = errors.Join(err, s.Release(user)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	close(stop)
	if err := <-collected; err != nil {
		t.Error(err)
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "s"))
	about := "https://user:secret@host/../../x"
	var got string
	if s.ReadNote(about, &got) {
		t.Error("an unknown user has pins")
	}
	for _, want := range []string{"one", "two"} {
		if err := s.WriteNote(about, want); err != nil {
			t.Fatal(err)
		}
		if !s.ReadNote(about, &got) || got != want {
			t.Errorf("Recall = %q, want %q", got, want)
		}
	}
	if err := os.WriteFile(s.notePath(about), []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.ReadNote(about, &got) {
		t.Error("a torn note is read")
	}
	if err := s.Collect(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(s.path(notesDir)); err != nil || len(entries) != 0 {
		t.Errorf("notes: %v, %v; want none", entries, err)
	}
}

// The age of an item or note whose last use is in the future, because of a clock that was ahead,
// starts now.
func TestItemsDatedInTheFuture(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "s"))
	if _, err := s.Take(t.Context(), "a", "k", filled); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Release("a"), s.WriteNote("n", "x")); err != nil {
		t.Fatal(err)
	}
	notes, err := os.ReadDir(s.path(notesDir))
	if err != nil || len(notes) != 1 {
		t.Fatalf("notes = %v, %v", notes, err)
	}
	ahead := time.Now().Add(365 * 24 * time.Hour)
	for _, path := range []string{s.path(itemsDir, "k"), s.path(notesDir, notes[0].Name())} {
		if err := os.Chtimes(path, ahead, ahead); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Collect(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	requireItems(t, s, "k")
	s.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	if err := s.Collect(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	requireItems(t, s)
	if notes, err := os.ReadDir(s.path(notesDir)); err != nil || len(notes) != 0 {
		t.Errorf("notes = %v, %v; want none", notes, err)
	}
}
