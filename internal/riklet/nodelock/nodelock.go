// Package nodelock makes sure that no other node uses a node's state directory, run directory or
// cgroup of instances. A riklet removes everything in them of which it has no record. So two nodes
// that shared one of them would remove each other's instances.
//
// A process locks these places while it uses them. Instances continue without a process, so the run
// directory and the cgroup also have a mark that names the node.
package nodelock

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/lockfile"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/identity"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/rpc/nodev1"
)

var (
	// ErrInUse is returned if another process uses a place.
	ErrInUse = errors.New("in use")
	// ErrOthers is returned if a place contains the instances of another node.
	ErrOthers = errors.New("contains the instances of another node")
)

// Names of the files and attributes that a lock uses.
const (
	// Mark is the file in the run directory that names its node.
	Mark = "rik-owner"
	// LockFile is the file in the state directory that is locked.
	LockFile = "lock"
	// attribute is the mark of a cgroup, which cannot contain files.
	attribute = "trusted.rik-owner"
)

// Places are the directories and the cgroup that belong to one node only.
type Places struct {
	// StateDir and RunDir are absolute paths. CgroupParent is an absolute path below the roots of
	// the hierarchies. All are required.
	StateDir     string `json:"stateDir"`
	RunDir       string `json:"runDir"`
	CgroupParent string `json:"cgroupParent"`
}

// Lock is the lock on a node's places. It ends with Release or with the process.
type Lock struct{ locks []*lockfile.Lock }

// place is one of the places.
type place struct {
	what, path, flag string
	// lock is the file or directory that is locked.
	lock string
	// occupied reports whether the place contains instances. It is nil if the place has no mark.
	occupied func() bool
	read     func() ([]byte, error)
	write    func([]byte) error
}

// Take creates the places if they are missing, with the run directory in memory, and locks them. If
// another node or process uses one, the error is ErrInUse or ErrOthers, and names the next step.
// Take has changed nothing of the other node then.
func Take(p Places) (*Lock, error) {
	c := &Lock{}
	if err := c.lockAll(p); err != nil {
		return nil, errors.Join(err, c.Release())
	}
	return c, nil
}

func (c *Lock) lockAll(p Places) error {
	if err := os.MkdirAll(p.StateDir, 0o700); err != nil {
		return fmt.Errorf("creating the state directory: %w", err)
	}
	if err := c.lockPlace(stateDir(p.StateDir)); err != nil {
		return err
	}
	key, err := identity.InstallationKey(p.StateDir)
	if err != nil {
		return err
	}
	me := owner{Places: p, Installation: nodev1.InstallationID(key)}
	if me.StateDir, err = filepath.EvalSymlinks(p.StateDir); err != nil {
		return fmt.Errorf("resolving the state directory: %w", err)
	}
	layout, err := cgroup.Detect()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(layout.Dir(p.CgroupParent), 0o755); err != nil {
		return fmt.Errorf("creating the cgroup of the instances: %w", err)
	}
	if err := c.lockAndMark(cgroupOf(layout, p.CgroupParent), me); err != nil {
		return err
	}
	// The run directory is last, so that its mount stays only if all places are this node's.
	return c.lockRunDir(p.RunDir, me)
}

// lockRunDir locks the directory before it mounts a file system over it, because another node may
// use the directory below. Then it also locks the mount.
func (c *Lock) lockRunDir(dir string, me owner) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the run directory: %w", err)
	}
	if err := c.lockAndMark(runDir(dir), me); err != nil {
		return err
	}
	mounted, err := mounts.InMemory(dir, mounts.RunLimits(), func() bool { return runDir(dir).occupied() })
	if err != nil {
		return fmt.Errorf("creating the run directory: %w", err)
	}
	if !mounted {
		return nil
	}
	return c.lockAndMark(runDir(dir), me)
}

// Release releases the places. Their content and their marks stay.
func (c *Lock) Release() error {
	var errs []error
	for _, lock := range c.locks {
		errs = append(errs, lock.Release())
	}
	c.locks = nil
	return errors.Join(errs...)
}

// lockPlace locks a place for this process.
func (c *Lock) lockPlace(p place) error {
	lock, err := lockfile.Take(p.lock)
	var held *lockfile.HeldError
	if errors.As(err, &held) {
		return fmt.Errorf("%s %s is %w by %s: stop that riklet, or give this node another %s", p.what, p.path, ErrInUse, held.By, p.flag)
	}
	if err != nil {
		return fmt.Errorf("locking the %s: %w", p.what, err)
	}
	c.locks = append(c.locks, lock)
	return nil
}

func stateDir(dir string) place {
	return place{what: "state directory", path: dir, flag: "--state-dir", lock: filepath.Join(dir, LockFile)}
}

func runDir(dir string) place {
	mark := filepath.Join(dir, Mark)
	return place{
		what: "run directory", path: dir, flag: "--run-dir", lock: dir,
		occupied: func() bool {
			entries, err := os.ReadDir(filepath.Join(dir, "pods"))
			return err == nil && len(entries) > 0
		},
		read:  func() ([]byte, error) { return os.ReadFile(mark) },
		write: func(data []byte) error { return os.WriteFile(mark, data, 0o600) },
	}
}

func cgroupOf(layout cgroup.Layout, group string) place {
	dir := layout.Dir(group)
	return place{
		what: "cgroup", path: group, flag: "--cgroup-parent", lock: dir,
		occupied: func() bool { return len(layout.Processes(group)) > 0 },
		read: func() ([]byte, error) {
			data := make([]byte, 64<<10) // XATTR_SIZE_MAX
			n, err := unix.Getxattr(dir, attribute, data)
			return data[:max(n, 0)], err
		},
		write: func(data []byte) error {
			err := unix.Setxattr(dir, attribute, data, 0)
			if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
				return nil // the mark of the run directory has to do
			}
			return err
		},
	}
}

// lockAndMark locks a place and marks it as this node's.
func (c *Lock) lockAndMark(p place, me owner) error {
	if err := c.lockPlace(p); err != nil {
		return err
	}
	// A mark that cannot be read counts as missing: an older rik wrote none, or a write was cut
	// short.
	var has owner
	if data, err := p.read(); err == nil && json.Unmarshal(data, &has) != nil {
		has = owner{}
	}
	if me.other(has) && p.occupied() {
		return fmt.Errorf("%s %s %w, which has the state directory %s: give this node another %s, or remove the other first (%s)",
			p.what, p.path, ErrOthers, has.StateDir, p.flag, has.purge())
	}
	data, err := json.Marshal(me)
	if err != nil {
		return err
	}
	if err := p.write(data); err != nil {
		return fmt.Errorf("marking the %s %s as this node's: %w", p.what, p.path, err)
	}
	return nil
}

// owner is the content of a mark.
type owner struct {
	Places
	Installation string `json:"installation"`
}

// other reports whether a mark is another node's. A node whose state directory was lost has a new
// installation in the same directory. A node that was moved has its installation in another
// directory. Neither of them counts as another node.
func (o owner) other(has owner) bool {
	return has.StateDir != "" && has.StateDir != o.StateDir && has.Installation != o.Installation
}

func (o owner) purge() string {
	return fmt.Sprintf("riklet purge --state-dir %s --run-dir %s --cgroup-parent %s", o.StateDir, o.RunDir, o.CgroupParent)
}
