package nodelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/lockfile"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/testkit/privileged"
)

// places returns places for one node.
func places(t *testing.T, name string) Places {
	t.Helper()
	dir := t.TempDir()
	p := Places{
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"),
		CgroupParent: fmt.Sprintf("/rik-claim-%d-%s", os.Getpid(), name),
	}
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(mounts.Unmount(p.RunDir), layout.Destroy(context.WithoutCancel(t.Context()), p.CgroupParent)); err != nil {
			t.Error(err)
		}
	})
	return p
}

func lockAll(t *testing.T, p Places) *Lock {
	t.Helper()
	c, err := Take(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Release(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func wantRefused(t *testing.T, what string, p Places, want error, says ...string) {
	t.Helper()
	c, err := Take(p)
	if err == nil {
		_ = c.Release()
	}
	if !errors.Is(err, want) {
		t.Errorf("%s: Take() = %v, want %v", what, err, want)
		return
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s: Take() = %q, want the text %q in it", what, err, text)
		}
	}
}

// A riklet that shared a place with another one removed all instances of the other.
func TestPrivilegedOneProcessPerPlace(t *testing.T) {
	privileged.Require(t)
	first, second := places(t, "a"), places(t, "b")
	held := lockAll(t, first)
	pid := fmt.Sprintf("in use by process %d (", os.Getpid())
	wantRefused(t, "the same state directory", Places{first.StateDir, second.RunDir, second.CgroupParent}, ErrInUse,
		"state directory "+first.StateDir, pid, "another --state-dir")
	wantRefused(t, "the same run directory", Places{second.StateDir, first.RunDir, second.CgroupParent}, ErrInUse,
		"run directory "+first.RunDir, pid, "another --run-dir")
	wantRefused(t, "the same cgroup", Places{second.StateDir, second.RunDir, first.CgroupParent}, ErrInUse,
		"cgroup "+first.CgroupParent, pid, "another --cgroup-parent")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(first.RunDir, link); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "the same run directory by another path", Places{second.StateDir, link, second.CgroupParent}, ErrInUse)
	other := lockAll(t, second)
	if err := errors.Join(held.Release(), other.Release()); err != nil {
		t.Fatal(err)
	}
	lockAll(t, first)
}

// The instances of a node continue without a process.
func TestPrivilegedInstancesOfOtherNodesStay(t *testing.T) {
	privileged.Require(t)
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	first, second := places(t, "a"), places(t, "b")
	if err := lockAll(t, first).Release(); err != nil {
		t.Fatal(err)
	}
	shared := Places{second.StateDir, first.RunDir, first.CgroupParent}
	if err := lockAll(t, shared).Release(); err != nil { // there are none yet
		t.Fatal(err)
	}
	if err := lockAll(t, first).Release(); err != nil {
		t.Fatal(err)
	}

	next := "riklet purge --state-dir " + first.StateDir + " --run-dir " + first.RunDir + " --cgroup-parent " + first.CgroupParent
	if err := os.MkdirAll(filepath.Join(first.RunDir, "pods", "u1"), 0o700); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "its run directory", Places{second.StateDir, first.RunDir, second.CgroupParent}, ErrOthers, next, "another --run-dir")
	procs, err := layout.Make(first.CgroupParent + "/u1")
	if err != nil {
		t.Fatal(err)
	}
	sleep := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleep.Wait() })
	for _, path := range procs {
		if err := os.WriteFile(path, []byte(fmt.Sprint(sleep.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	wantRefused(t, "its cgroup", Places{second.StateDir, second.RunDir, first.CgroupParent}, ErrOthers, next, "another --cgroup-parent")

	// A node keeps its places when its state directory is lost or moved.
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(first.StateDir, moved); err != nil {
		t.Fatal(err)
	}
	if err := lockAll(t, Places{moved, first.RunDir, first.CgroupParent}).Release(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(moved); err != nil {
		t.Fatal(err)
	}
	lockAll(t, Places{moved, first.RunDir, first.CgroupParent})
}

// A run directory in a larger file system in memory gets a separate file system. It does not while
// instances of an earlier version run, because the mount would hide their sockets and files.
func TestPrivilegedTheRunDirectoryIsBounded(t *testing.T) {
	privileged.Require(t)
	p := places(t, "a")
	run := t.TempDir()
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mounts.UnmountBelow(run); err != nil {
			t.Error(err)
		}
	})
	p.RunDir = filepath.Join(run, "riklet")
	instance := filepath.Join(p.RunDir, "pods", "u1")
	if err := os.MkdirAll(instance, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := lockAll(t, p).Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(instance); err != nil {
		t.Errorf("the instance is hidden: %v", err)
	}
	if err := os.Remove(instance); err != nil {
		t.Fatal(err)
	}
	held := lockAll(t, p)
	if bounded, err := mounts.Bounded(p.RunDir); !bounded || err != nil {
		t.Errorf("Bounded() = %t, %v", bounded, err)
	}
	other := places(t, "b")
	wantRefused(t, "the same run directory", Places{other.StateDir, p.RunDir, other.CgroupParent}, ErrInUse)
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	lockAll(t, p)
}

// A node without instances also locks its run directory, because another node's mount would hide
// it.
func TestPrivilegedARunDirectoryInUseIsNotMountedOver(t *testing.T) {
	privileged.Require(t)
	p := places(t, "a")
	if err := os.MkdirAll(p.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := lockfile.Take(p.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "a run directory that is in use", p, ErrInUse)
	if paths, err := mounts.Below(p.RunDir); len(paths) > 0 || err != nil {
		t.Errorf("mounted: %q, %v", paths, err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
}
