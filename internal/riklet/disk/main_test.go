package disk

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"rik.dev/rik/internal/riklet/fetch"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/image/unpack"
)

// TestMain makes the test binary its own unpacker, like in the image store's tests.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "unpack" {
		if err := unpack.Unpack(context.Background(), nil, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// trees is a fake image store without layers: an image is a directory, and a mount is that
// directory.
type trees struct {
	dir string

	mu      sync.Mutex
	mounted map[string]bool
	mounts  int
	onMount func()
}

func (i *trees) Mount(ctx context.Context, id string, _ *image.Image) (string, error) {
	i.mu.Lock()
	i.mounted[id] = true
	i.mounts++
	on := i.onMount
	i.mu.Unlock()
	if on != nil {
		on()
	}
	return i.dir, ctx.Err()
}

func (i *trees) Unmount(_ context.Context, id string, _ bool) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.mounted, id)
	return nil
}

func (i *trees) Mounted() ([]string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var ids []string
	for id := range i.mounted {
		ids = append(ids, id)
	}
	return ids, nil
}

func (i *trees) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mounts
}

func newTrees(tb testing.TB) *trees {
	tb.Helper()
	return &trees{dir: tb.TempDir(), mounted: map[string]bool{}}
}

// newDir opens a store in a new directory.
func newDir(tb testing.TB, change func(*Config)) *Dir {
	tb.Helper()
	return newDirAt(tb, filepath.Join(tb.TempDir(), "disks"), change)
}

func newDirAt(tb testing.TB, root string, change func(*Config)) *Dir {
	tb.Helper()
	cfg := Config{
		Root:     root,
		Unpacker: []string{"/proc/self/exe", "unpack"},
		Limits:   fetch.Limits{ReserveBytes: 1},
		Logger:   slog.New(slog.NewTextHandler(tb.Output(), nil)),
	}
	if change != nil {
		change(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = d.Close() })
	return d
}

// ask sends a command to debugfs for an image, which needs no root.
func ask(tb testing.TB, path, question string) string {
	tb.Helper()
	program, err := find("", "debugfs")
	if err != nil {
		tb.Fatal(err)
	}
	out, err := exec.CommandContext(tb.Context(), program, "-R", question, path).Output()
	if err != nil {
		tb.Fatalf("debugfs %s: %v", question, err)
	}
	return string(out)
}

// requireSound fails the test if e2fsck reports a problem.
func requireSound(tb testing.TB, path string) {
	tb.Helper()
	program, err := find("", "e2fsck")
	if err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.CommandContext(tb.Context(), program, "-f", "-n", path).CombinedOutput(); err != nil {
		tb.Errorf("e2fsck: %v\n%s", err, out)
	}
}

// requireClean fails the test if there are files other than complete images below the root.
func requireClean(tb testing.TB, d *Dir, items int) {
	tb.Helper()
	for dir, want := range map[string]int{"tmp": 0, "items": items} {
		entries, err := os.ReadDir(filepath.Join(d.cfg.Root, dir))
		if err != nil {
			tb.Fatal(err)
		}
		if len(entries) != want {
			tb.Errorf("%s has %d entries, want %d: %v", dir, len(entries), want, entries)
		}
	}
}

func write(tb testing.TB, path, content string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		tb.Fatal(err)
	}
}

func sampleImage(name string) *image.Image {
	return &image.Image{
		Reference: "oci:/images/" + name + ":v1",
		Digest:    "sha256:" + strings.Repeat("a", 64),
		Layers:    []string{"/layers/" + name + "/fs"},
	}
}
