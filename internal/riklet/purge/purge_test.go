package purge

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/network"
	"rik.dev/rik/internal/riklet/nodelock"
)

// fakeNode records the calls, and fails with an error.
type fakeNode struct {
	calls []string
	fails map[string]error
}

func (f *fakeNode) call(name string) error {
	f.calls = append(f.calls, name)
	return f.fails[name]
}

func (f *fakeNode) Recover(context.Context) error { return f.call("recover") }
func (f *fakeNode) Purge(context.Context) error   { return f.call("purge") }
func (f *fakeNode) Halt(context.Context) error    { return f.call("halt") }
func (f *fakeNode) Close() error                  { return f.call("close") }

type fakeStores struct{ *fakeNode }

func (f fakeStores) Close() error { return f.call("close stores") }

// TestRemove tests that the directories are removed after the instances, and stay if an instance
// cannot be removed.
func TestRemove(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		keep    bool
		fails   map[string]error
		calls   []string
		removed bool
	}{
		"all":           {false, nil, []string{"recover", "purge", "close", "close stores"}, true},
		"all but data":  {true, nil, []string{"recover", "halt", "close", "close stores"}, false},
		"no records":    {false, map[string]error{"recover": errors.ErrUnsupported}, []string{"recover", "close", "close stores"}, false},
		"an instance":   {false, map[string]error{"purge": errors.ErrUnsupported}, []string{"recover", "purge", "close", "close stores"}, false},
		"does not stop": {true, map[string]error{"halt": errors.ErrUnsupported}, []string{"recover", "halt", "close", "close stores"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := &fakeNode{fails: tc.fails}
			places := nodelock.Places{StateDir: filepath.Join(t.TempDir(), "state"), RunDir: filepath.Join(t.TempDir(), "run")}
			for _, dir := range []string{places.StateDir, places.RunDir, filepath.Join(places.StateDir, "images"), filepath.Join(places.StateDir, "jails", "firecracker")} {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			c := Config{
				Places: places, KeepData: tc.keep, JailDir: filepath.Join(places.StateDir, "jails"),
				Network: network.Config{Node: "n-1", Dir: filepath.Join(places.StateDir, "network")},
				Open:    func(instance.Objects) (io.Closer, Driver, error) { return fakeStores{node}, node, nil },
			}
			err := c.remove(t.Context())
			if failed := tc.fails != nil; (err != nil) != failed || err != nil && !errors.Is(err, errors.ErrUnsupported) || !slices.Equal(node.calls, tc.calls) {
				t.Errorf("remove() = %v after %q, want %q", err, node.calls, tc.calls)
			}
			for dir, removed := range map[string]bool{places.StateDir: tc.removed, places.RunDir: tc.fails == nil} {
				if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) != removed {
					t.Errorf("%s: %v, removed is to be %v", dir, err, removed)
				}
			}
		})
	}
}

// TestDirectoryOfOthers tests that nothing is opened or removed in a directory that does not belong to
// a node.
func TestDirectoryOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	photo := filepath.Join(dir, "photo")
	if err := os.WriteFile(photo, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Run(t.Context(), Config{
		Places: nodelock.Places{StateDir: dir, RunDir: filepath.Join(t.TempDir(), "run"), CgroupParent: "/rik-test-none"},
		Open:   func(instance.Objects) (io.Closer, Driver, error) { return nil, nil, errors.New("it was opened") },
	})
	if !errors.Is(err, nodelock.ErrNotANode) || !strings.HasSuffix(err.Error(), "; nothing was removed") {
		t.Errorf("Run() = %v, want ErrNotANode", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the directory now contains %v, %v", entries, err)
	}
}
