package node

import (
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/app/logflag"
	"rik.dev/rik/internal/riklet/nested"
)

// nestedDir is the directory of the boot ID of a container. It is not the run directory, which the
// node mounts itself.
const nestedDir = "/run/rik"

// containerCommand runs a node as the first process of a container.
func containerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "container -- [FLAG]...",
		Short: "Run the node as the first process of a container of a container engine",
		Long: `Run the node as the first process of a container, with the flags of riklet after "--".

It makes the container's own cgroups and network settings writable, starts the riklet, starts it
again when it ends, and collects processes without parents. When the container stops, instances
get SIGTERM. When it starts again, the node behaves as after a restart of its machine.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if os.Getpid() != nested.First {
				return usagef("riklet container must be the first process of a container, because it changes mounts and stops all processes that it sees")
			}
			return runNested(args)
		},
	}
}

func runNested(args []string) error {
	log, err := logger(logflag.Flags{Level: "info", Format: logflag.Text})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	// The thread stays locked, because its cgroup namespace is the node's.
	runtime.LockOSThread()
	if err := nested.Prepare(nestedDir); err != nil {
		return err
	}
	node := nested.Node{
		Argv: append([]string{self}, args...), Final: []int{exitUsage},
		Again: nested.DefaultAgain, Grace: nested.DefaultGrace, Logger: log,
	}
	switch code, err := node.Run(); {
	case err != nil:
		return err
	case code == exitUsage:
		return usagef("the node does not start with these flags")
	case code != 0:
		return fmt.Errorf("the riklet ended with the exit code %d", code)
	default:
		return nil
	}
}
