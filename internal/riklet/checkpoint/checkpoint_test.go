package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestObeyKeepsTheHighestTerm(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.json")
	l := open(t, path)
	for _, step := range []struct {
		term int64
		want error
	}{{0, nil}, {3, nil}, {3, nil}, {2, ErrLowerTerm}, {4, nil}, {3, ErrLowerTerm}} {
		if err := l.AcceptTerm(step.term); !errors.Is(err, step.want) {
			t.Errorf("AcceptTerm(%d) = %v, want %v", step.term, err, step.want)
		}
	}
	again := open(t, path)
	if again.Term() != 4 {
		t.Errorf("Term() after a restart = %d, want 4", again.Term())
	}
	if err := again.AcceptTerm(3); !errors.Is(err, ErrLowerTerm) {
		t.Errorf("AcceptTerm(3) after a restart = %v, want ErrLowerTerm", err)
	}
}

// A cluster that was set up again starts with its first term. Nodes that kept their state obey it,
// and not the old cluster any more.
func TestTermsBelongToOneCluster(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.json")
	l := open(t, path)
	if err := l.AcceptTerm(7); err != nil { // as a checkpoint without a cluster
		t.Fatal(err)
	}
	if err := l.Fence("a", true); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		cluster []string
		moved   bool
		term    int64
	}{
		{[]string{"old"}, false, 7},
		{[]string{"old"}, false, 7},
		{nil, false, 7},
		{[]string{"old", "rotated"}, false, 7},
		{[]string{"rotated"}, false, 7},
		{[]string{"new"}, true, 0},
	} {
		l = open(t, path)
		moved, err := l.SetCluster(step.cluster)
		if moved != step.moved || err != nil || l.Term() != step.term {
			t.Errorf("SetCluster(%v) = %v, %v, then term %d, want %v and %d", step.cluster, moved, err, l.Term(), step.moved, step.term)
		}
	}
	l = open(t, path)
	if err := l.AcceptTerm(1); err != nil || len(l.Fenced()) != 0 {
		t.Errorf("AcceptTerm(1) of the new cluster = %v, still fenced: %v", err, l.Fenced())
	}
}

// Sequence numbers grow over restarts, whatever the clock does meanwhile.
func TestSequenceRises(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.json")
	last := int64(0)
	draw := func(l *Store) {
		t.Helper()
		for range 3 {
			n, err := l.NextSequence()
			if err != nil {
				t.Fatal(err)
			}
			if n <= last {
				t.Errorf("NextSequence() = %d after %d", n, last)
			}
			last = n
		}
	}
	draw(open(t, path))
	draw(open(t, path))
	// The clock in a bubble starts in the year 2000.
	synctest.Test(t, func(t *testing.T) { draw(open(t, path)) })
	// After a loss of the disk, only the clock makes the numbers grow.
	fresh := filepath.Join(t.TempDir(), "ledger.json")
	n, err := open(t, fresh).NextSequence()
	if err != nil || n < time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro() {
		t.Errorf("NextSequence() of a new checkpoint = %d, %v, want it to follow the clock", n, err)
	}
}

func TestSequenceReservesOneBlockAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.json")
	l := open(t, path)
	if _, err := l.NextSequence(); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if _, err := l.NextSequence(); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.Stat(path)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was replaced for numbers of a reserved block (%v)", err)
	}
}

func TestFenceAndTimeoutSurviveARestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.json")
	l := open(t, path)
	for _, step := range []error{l.Fence("a", true), l.Fence("b", true), l.Fence("a", false), l.SetTimeout(20 * time.Second)} {
		if step != nil {
			t.Fatal(step)
		}
	}
	again := open(t, path)
	if diff := cmp.Diff([]string{"b"}, again.Fenced()); diff != "" {
		t.Errorf("Fenced() (-want +got):\n%s", diff)
	}
	if again.Timeout() != 20*time.Second {
		t.Errorf("Timeout() = %s, want 20s", again.Timeout())
	}
}

// A full disk must not stop a node from obeying orders.
func TestUnwritableCheckpointStillCounts(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "missing")
	path := filepath.Join(dir, "ledger.json")
	l := open(t, path)
	if err := l.AcceptTerm(3); err == nil || errors.Is(err, ErrLowerTerm) {
		t.Errorf("AcceptTerm(3) = %v, want an error of the disk", err)
	}
	if err := l.AcceptTerm(2); !errors.Is(err, ErrLowerTerm) {
		t.Errorf("AcceptTerm(2) = %v, want ErrLowerTerm", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.AcceptTerm(3); err != nil || open(t, path).Term() != 3 {
		t.Errorf("AcceptTerm(3) with room again = %v, want it kept", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"rubbish": "{", "another version": `{"version": 9}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "ledger.json")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(path)
			if err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("Open() = %v, want an error that names the file", err)
			}
			if name == "rubbish" && (err == nil || !strings.Contains(err.Error(), "Restore the file from a copy") || !strings.Contains(err.Error(), "riklet purge")) {
				t.Errorf("Open() = %v, want the next step", err)
			}
		})
	}
}
