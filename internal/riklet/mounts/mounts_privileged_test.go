package mounts

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/testkit/privileged"
)

// tree creates a directory for a test, and unmounts everything in it at the end.
func tree(t *testing.T, dirs ...string) string {
	t.Helper()
	privileged.Require(t)
	root := t.TempDir()
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := UnmountBelow(root); err != nil {
			t.Error(err)
		}
	})
	return root
}

func mount(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func requireMounts(t *testing.T, dir string, want ...string) {
	t.Helper()
	got, err := Below(dir)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("Below(%s) = %q, %v, want %q", dir, got, err, want)
	}
}

func TestPrivilegedBelow(t *testing.T) {
	root := tree(t, "a/with space/deep", "ab")
	a := filepath.Join(root, "a")
	space := filepath.Join(a, "with space")
	for _, path := range []string{a, filepath.Join(root, "ab")} {
		mount(t, path)
	}
	if err := os.MkdirAll(filepath.Join(space, "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, filepath.Join(space, "deep"))
	want := []string{filepath.Join(space, "deep"), a}
	requireMounts(t, a, want...)
	requireMounts(t, a+"/", want...)
	requireMounts(t, space, want[0])
	link(t, root, filepath.Join(root, "link"))
	requireMounts(t, filepath.Join(root, "link", "a"), want...)
	requireMounts(t, filepath.Join(root, "none"))

	if err := UnmountBelow(filepath.Join(root, "link", "a")); err != nil {
		t.Error(err)
	}
	requireMounts(t, root, filepath.Join(root, "ab"))
}

func TestPrivilegedUnmount(t *testing.T) {
	root := tree(t, "twice", "busy", "none", "target")
	twice := filepath.Join(root, "twice")
	mount(t, twice)
	mount(t, twice)
	busy := filepath.Join(root, "busy")
	mount(t, busy)
	f, err := os.Create(filepath.Join(busy, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, name := range []string{"twice", "busy", "none", "not there"} {
		if err := Unmount(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	requireMounts(t, root)
	if _, err := f.WriteString("still"); err != nil {
		t.Errorf("writing to a detached mount: %v", err)
	}

	target := filepath.Join(root, "target")
	mount(t, target)
	link(t, target, filepath.Join(root, "link"))
	if err := Unmount(filepath.Join(root, "link")); err != nil {
		t.Error(err)
	}
	requireMounts(t, root, target)
}

// A mount below a path that another mount covers cannot be reached. It is removed with the mount
// that contains it.
func TestPrivilegedUnmountBelowAnotherMount(t *testing.T) {
	root := tree(t, "a")
	a := filepath.Join(root, "a")
	mount(t, a)
	if err := os.Mkdir(filepath.Join(a, "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, filepath.Join(a, "b"))
	mount(t, a)
	if err := UnmountBelow(a); err != nil {
		t.Error(err)
	}
	requireMounts(t, root)
}

func TestPrivilegedNothingIsRemovedThroughAMount(t *testing.T) {
	root := tree(t, "node/sub", "host")
	host, sub := filepath.Join(root, "host"), filepath.Join(root, "node", "sub")
	write(t, filepath.Join(host, "precious"))
	write(t, filepath.Join(root, "node", "beside"))
	if err := unix.Mount(host, sub, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	link(t, filepath.Join(root, "node"), filepath.Join(root, "link"))
	for name, remove := range map[string]func(string) error{"RemoveAll": RemoveAll, "Clear": Clear} {
		for _, dir := range []string{"node", "link"} {
			if err := remove(filepath.Join(root, dir)); err == nil || !strings.Contains(err.Error(), sub+" is still mounted") {
				t.Errorf("%s(%s) = %v, want that %s is still mounted", name, dir, err, sub)
			}
		}
	}
	if !exists(t, filepath.Join(host, "precious")) || !exists(t, filepath.Join(root, "node", "beside")) {
		t.Error("something was removed")
	}
}

func TestPrivilegedClear(t *testing.T) {
	root := tree(t, "plain/in", "target/in", "disk")
	link(t, "target", filepath.Join(root, "link"))
	mount(t, filepath.Join(root, "disk"))
	write(t, filepath.Join(root, "disk", "in"))
	for name, stays := range map[string]bool{"plain": false, "link": true, "disk": true, "none": false} {
		dir := filepath.Join(root, name)
		if err := Clear(dir); err != nil {
			t.Error(err)
		}
		if exists(t, filepath.Join(dir, "in")) {
			t.Errorf("Clear(%s) left its content", name)
		}
		if exists(t, dir) != stays {
			t.Errorf("after Clear(%s) it exists: %t, want %t", name, !stays, stays)
		}
	}
	requireMounts(t, root, filepath.Join(root, "disk"))
}

func never() bool { return false }

func requireInMemory(t *testing.T, dir string, occupied func() bool, want bool) {
	t.Helper()
	if mounted, err := InMemory(dir, Limits{Bytes: 1 << 20, Inodes: 64}, occupied); mounted != want || err != nil {
		t.Fatalf("InMemory(%s) = %t, %v, want %t", dir, mounted, err, want)
	}
}

func requireLimit(t *testing.T, dir string, bytes int64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC || int64(st.Blocks)*st.Bsize != bytes {
		t.Errorf("%s is on a file system of type %#x with %d bytes, %v, want memory with %d", dir, st.Type, int64(st.Blocks)*st.Bsize, err, bytes)
	}
}

func TestPrivilegedInMemory(t *testing.T) {
	dir := filepath.Join(tree(t), "run")
	requireInMemory(t, dir, never, true)
	requireInMemory(t, dir, never, false)
	requireLimit(t, dir, 1<<20)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the mode is %v, %v, want 0700", info.Mode(), err)
	}
	requireMounts(t, dir, dir)
	if bounded, err := Bounded(dir); !bounded || err != nil {
		t.Errorf("Bounded() = %t, %v", bounded, err)
	}
}

// A directory in the machine's /run is no separate file system: its files use the space of /run.
func TestPrivilegedInMemoryInsideAMachinesRun(t *testing.T) {
	run := filepath.Join(tree(t, "run"), "run")
	mount(t, run)
	dir := filepath.Join(run, "riklet")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "socket"))
	requireInMemory(t, dir, func() bool { return true }, false)
	if !exists(t, filepath.Join(dir, "socket")) {
		t.Error("files in use are hidden")
	}
	if bounded, err := Bounded(dir); bounded || err != nil {
		t.Errorf("Bounded() = %t, %v", bounded, err)
	}
	requireInMemory(t, dir, never, true)
	requireLimit(t, dir, 1<<20)
	if exists(t, filepath.Join(dir, "socket")) {
		t.Error("the directory was not mounted over")
	}
}

func TestPrivilegedInMemoryOverAnUnlimitedMount(t *testing.T) {
	dir := filepath.Join(tree(t, "run"), "run")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=0,nr_inodes=0"); err != nil {
		t.Fatal(err)
	}
	requireInMemory(t, dir, never, true)
	requireLimit(t, dir, 1<<20)
}
