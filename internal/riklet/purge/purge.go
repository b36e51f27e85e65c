// Package purge removes a node that is not running from a machine: its instances, and everything
// that it created.
package purge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"rik.dev/rik/internal/riklet/caches"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/network"
	"rik.dev/rik/internal/riklet/nodelock"
	"rik.dev/rik/internal/riklet/vmm/firecracker"
)

// Driver has the instances. [*runner.Driver] implements it.
type Driver interface {
	// Recover finds the running instances, like in an agent.
	Recover(ctx context.Context) error
	// Purge stops and removes them.
	Purge(ctx context.Context) error
	// Halt stops them, and keeps their data.
	Halt(ctx context.Context) error
	Close() error
}

// Config describes the node. All fields are required, except JailDir.
type Config struct {
	Places nodelock.Places
	// Open opens the caches and the driver. It is called when no other process works on the places.
	// The instances need no objects, because none is started.
	Open func(objects instance.Objects) (io.Closer, Driver, error)
	// Network is the configuration of the node's network.
	Network network.Config
	// JailDir is the directory of Firecracker's jails.
	JailDir string
	// KeepData keeps images, volumes, logs and records: the next agent starts the instances again,
	// as after a boot. A node that never started is then not an error.
	KeepData bool
}

// errNothing ends the errors of a purge that removed nothing.
func errNothing(err error) error { return fmt.Errorf("%w; nothing was removed", err) }

// Run stops all instances of the node, and removes everything that the node created on this
// machine. It refuses a state directory that does not belong to a node with
// [nodelock.ErrNotANode].
func Run(ctx context.Context, c Config) error {
	if _, err := os.Stat(filepath.Join(c.Places.StateDir, nodelock.LockFile)); c.KeepData && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := nodelock.RequireNode("--state-dir", c.Places.StateDir, nodelock.LockFile, caches.LayersDir); err != nil {
		return errNothing(err)
	}
	held, err := nodelock.Take(c.Places)
	if err != nil {
		return errNothing(err)
	}
	return errors.Join(c.remove(ctx), held.Release())
}

// remove removes the contents of the node's directories, and the directories.
func (c Config) remove(ctx context.Context) error {
	stores, driver, err := c.Open(noObjects{})
	if err != nil {
		return err
	}
	if err := driver.Recover(ctx); err != nil {
		return errors.Join(err, driver.Close(), stores.Close())
	}
	end := driver.Purge
	if c.KeepData {
		end = driver.Halt
	}
	if err := errors.Join(end(ctx), driver.Close(), stores.Close()); err != nil {
		return err
	}
	if err := network.Purge(ctx, c.Network); err != nil {
		return err
	}
	if c.KeepData {
		return errors.Join(mounts.UnmountBelow(c.Places.StateDir), mounts.Clear(c.Places.RunDir))
	}
	return errors.Join(firecracker.RemoveJailDir(c.JailDir), mounts.Clear(c.Places.StateDir), mounts.Clear(c.Places.RunDir))
}

// noObjects is the source of objects for a driver that starts no instances.
type noObjects struct{}

var errPurging = errors.New("removing the node")

func (noObjects) ConfigMap(context.Context, string, string) (instance.Entries, error) {
	return instance.Entries{}, errPurging
}

func (noObjects) Secret(context.Context, string, string) (instance.Entries, error) {
	return instance.Entries{}, errPurging
}
