package node

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/app/logflag"
	"rik.dev/rik/internal/install"
	"rik.dev/rik/internal/install/layout"
	"rik.dev/rik/internal/riklet"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/nodelock"
	"rik.dev/rik/internal/riklet/purge"
)

func purgeCommand() *cobra.Command {
	o := DefaultOptions()
	var keepData bool
	var service string
	c := &cobra.Command{
		Use:   "purge",
		Short: "Stop all instances of a stopped node, and remove everything that it created on this machine",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := logger(logflag.Flags{Level: "warn", Format: logflag.Text})
			if err != nil {
				return err
			}
			if service != "" {
				flags, err := install.FlagsOf("/", layout.Package(service))
				if err != nil {
					return err
				}
				o, _ = directories(flags)
			}
			return Purge(c.Context(), o, keepData, log)
		},
	}
	c.Flags().StringVar(&service, "service", "", "use the directories in the flags of this systemd service: rik or riklet")
	c.Flags().BoolVar(&keepData, "keep-data", false, "keep images, volumes, logs and records: the next start of the node starts its instances again, as after a boot")
	o.addDirFlags(c.Flags())
	return c
}

// Purge stops all instances of a node that is not running, and removes everything that the node
// created on this machine. With keepData the node's data stays.
func Purge(ctx context.Context, o Options, keepData bool, log *slog.Logger) error {
	if err := o.Validate(); err != nil {
		return err
	}
	err := purge.Run(ctx, purge.Config{
		Places: o.places(), Network: o.networkConfig(), JailDir: o.jailDir(), KeepData: keepData,
		Open: func(objects instance.Objects) (io.Closer, purge.Driver, error) { return o.openStopped(objects, log) },
	})
	if errors.Is(err, nodelock.ErrNotANode) {
		return usagef("%w", err)
	}
	return err
}

// openStopped opens the caches and the driver of a node that starts no instances.
func (o *Options) openStopped(objects instance.Objects, log *slog.Logger) (io.Closer, purge.Driver, error) {
	opened, err := o.openCaches(log)
	if err != nil {
		return nil, nil, err
	}
	vm, err := o.newVM(opened, log)
	if err != nil {
		return nil, nil, errors.Join(err, opened.Close())
	}
	host := riklet.Host{NodeName: o.NodeName, StateDir: o.StateDir, RunDir: o.RunDir, Objects: objects, Changed: func() {}, Logger: log}
	driver, err := o.newPods(host, opened, vm)
	if err != nil {
		return nil, nil, errors.Join(err, opened.Close())
	}
	return opened, driver, nil
}
