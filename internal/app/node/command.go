package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/app/logflag"
	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/heap"
	"rik.dev/rik/internal/riklet/join"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/sdnotify"
	"rik.dev/rik/internal/version"
)

// Commands returns the node's commands of the program rik.
func Commands() []*cobra.Command {
	return []*cobra.Command{AgentCommand("agent"), purgeCommand(), UninstallCommand()}
}

// AgentCommand returns the command that joins this machine to a cluster and runs its node.
func AgentCommand(use string) *cobra.Command {
	o := DefaultOptions()
	var server, token, tokenFile string
	var logFlags logflag.Flags
	c := &cobra.Command{
		Use:   use,
		Short: "Join this machine to a cluster and run its instances",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			heap.Small()
			log, err := logger(logFlags)
			if err != nil {
				return err
			}
			connections, err := connect(server, token, tokenFile)
			if err != nil {
				return err
			}
			return Run(c.Context(), o, connections, log)
		},
	}
	o.AddFlags(c.Flags())
	c.Flags().StringVar(&server, "server", os.Getenv("RIK_SERVER"), "address of the cluster's API, such as https://10.0.0.1:5000 [RIK_SERVER]")
	c.Flags().StringVar(&token, "token", os.Getenv("RIK_TOKEN"), "join token; other users of this machine can see it, so prefer --token-file or the environment [RIK_TOKEN]")
	c.Flags().StringVar(&tokenFile, "token-file", "", "file with the join token; on the server it is node-token in the data directory")
	logFlags.Add(c.Flags())
	return c
}

// logger returns the logger that the flags describe.
func logger(f logflag.Flags) (*slog.Logger, error) {
	log, err := f.Logger(os.Stderr)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return log, nil
}

// connect reads the address of the cluster and the join token, if there is one. A node that has
// joined needs no token.
func connect(server, token, tokenFile string) (Connections, error) {
	if server == "" {
		return Connections{}, usagef("--server is required: the address of the cluster's API, such as https://10.0.0.1:5000")
	}
	var c Connections
	var err error
	if c.SchedulerAddress, c.ControllerAddress, err = join.Addresses(server); err != nil {
		return Connections{}, err
	}
	if tokenFile != "" {
		raw, err := os.ReadFile(tokenFile)
		if err != nil {
			return Connections{}, fmt.Errorf("reading the join token: %w", err)
		}
		token = string(bytes.TrimSpace(raw))
	}
	if token == "" {
		return c, nil
	}
	c.Token, err = jointoken.Parse(token)
	return c, err
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}

// Exit codes of the program.
const (
	exitError = 1
	exitUsage = 2
)

// Program returns the program riklet: the agent, with subcommands that check this machine, install
// and remove it, and run it in a container.
func Program() *cobra.Command {
	c := AgentCommand("riklet")
	c.AddCommand(purgeCommand(), CheckCommand(), RepairCommand(), DoctorCommand(doctor.RoleNode), VersionCommand(), InstallCommand("riklet", nil), UninstallCommand(), containerCommand())
	return c
}

// VersionCommand returns the command that prints the version.
func VersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), version.Version) },
	}
}

// Main runs the program riklet.
func Main(ctx context.Context, args []string) int {
	c := Program()
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%w", err) })
	c.SetArgs(args)
	n := sdnotify.Take()
	context.AfterFunc(ctx, n.Stopping)
	err := c.ExecuteContext(sdnotify.With(ctx, n))
	var findings *doctor.ResultError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &findings):
		fmt.Fprintf(os.Stderr, "riklet: %v\n", err)
		return findings.Code
	case errors.Is(err, ErrUsage):
		fmt.Fprintf(os.Stderr, "riklet: %v\nsee riklet --help\n", err)
		return exitUsage
	default:
		fmt.Fprintf(os.Stderr, "riklet: %v\n", err)
		return exitError
	}
}
