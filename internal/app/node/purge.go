package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/riklet"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/network"
	"rik.dev/rik/internal/riklet/nodelock"
)

func purgeCommand() *cobra.Command {
	o := DefaultOptions()
	c := &cobra.Command{
		Use:   "purge",
		Short: "Stop all instances of a stopped node, and remove everything that it created on this machine",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := logger("warn", "text")
			if err != nil {
				return err
			}
			return Purge(c.Context(), o, log)
		},
	}
	o.addDirFlags(c.Flags())
	return c
}

// Purge stops all instances of a node that is not running, and removes everything that the node
// created on this machine.
func Purge(ctx context.Context, o Options, log *slog.Logger) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if err := requireNodes("--state-dir", o.StateDir, nodelock.LockFile, filepath.Join("images", "layers")); err != nil {
		return fmt.Errorf("%w; nothing was removed", err)
	}
	held, err := nodelock.Take(o.places())
	if err != nil {
		return fmt.Errorf("%w; nothing was removed", err)
	}
	return errors.Join(o.purge(ctx, log), held.Release())
}

// purge removes the contents of the node's directories, and the directories.
func (o *Options) purge(ctx context.Context, log *slog.Logger) error {
	stores, err := o.openStores(log)
	if err != nil {
		return err
	}
	vm, err := o.newVM(stores, log)
	if err != nil {
		return errors.Join(err, stores.Close())
	}
	host := riklet.Host{NodeName: o.NodeName, StateDir: o.StateDir, RunDir: o.RunDir, Objects: noObjects{}, Changed: func() {}, Logger: log}
	pods, err := o.newPods(host, stores, vm)
	if err != nil {
		return errors.Join(err, stores.Close())
	}
	// Recover finds the running instances, like in an agent.
	if err := pods.Recover(ctx); err != nil {
		return errors.Join(err, pods.Close(), stores.Close())
	}
	if err := errors.Join(pods.Purge(ctx), pods.Close(), stores.Close()); err != nil {
		return err
	}
	if err := network.Purge(ctx, o.networkConfig()); err != nil {
		return err
	}
	return errors.Join(o.removeJailDir(), mounts.Clear(o.StateDir), mounts.Clear(o.RunDir))
}

// noObjects is the source of objects for a driver that starts no instances.
type noObjects struct{}

var errPurging = fmt.Errorf("removing the node")

func (noObjects) ConfigMap(context.Context, string, string) (instance.Entries, error) {
	return instance.Entries{}, errPurging
}

func (noObjects) Secret(context.Context, string, string) (instance.Entries, error) {
	return instance.Entries{}, errPurging
}
