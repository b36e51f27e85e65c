package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/app/multicluster"
	"rik.dev/rik/internal/app/node"
	"rik.dev/rik/internal/app/recovery"
	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/rikctl/handover"
	"rik.dev/rik/internal/sdnotify"
)

// Exit codes of the programs.
const (
	exitError = 1
	exitUsage = 2
)

// errUsage marks errors of the command line. A node's flags use the same error.
var errUsage = node.ErrUsage

// Main runs a program by its name and returns its exit code. "rik" has every component as a
// subcommand. The other names run one component.
func Main(program string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx = notifying(ctx)
	if handover.Applies(program, args) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, handover.Run(args))
		return exitError
	}
	command := commandOf(program)
	command.SetArgs(args)
	err := command.ExecuteContext(ctx)
	var exit *multicluster.ExitError
	var findings *doctor.ResultError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &findings):
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		return findings.Code
	case errors.As(err, &exit):
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		return exit.Code
	case errors.Is(err, errUsage):
		fmt.Fprintf(os.Stderr, "%s: %v\nsee %s --help\n", program, err, program)
		return exitUsage
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		return exitError
	}
}

// notifying returns a context with the Notifier of this process. It reports the end of ctx.
func notifying(ctx context.Context) context.Context {
	n := sdnotify.Take()
	context.AfterFunc(ctx, n.Stopping)
	return sdnotify.With(ctx, n)
}

// Called returns the program to run for the path of the executable. Every component is a link to
// rik, or a copy, with the component's name. With any other name the program is rik.
func Called(path string) string {
	name := filepath.Base(path)
	if _, found := componentOf(name, components()); found {
		return name
	}
	return "rik"
}

func components() []*cobra.Command {
	return append([]*cobra.Command{controllerCommand(), schedulerCommand()}, multicluster.Commands()...)
}

func componentOf(program string, components []*cobra.Command) (*cobra.Command, bool) {
	i := slices.IndexFunc(components, func(c *cobra.Command) bool { return c.Name() == program })
	if i < 0 {
		return nil, false
	}
	return components[i], true
}

func commandOf(program string) *cobra.Command {
	components := components()
	command, found := componentOf(program, components)
	if !found {
		command = rikCommand()
		command.AddCommand(components...)
	}
	command.AddCommand(node.VersionCommand())
	return quiet(command)
}

// rikCommand returns the command rik without the components that are also separate programs.
func rikCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "rik",
		Short: "rik runs containers, microVMs and processes on one machine or many",
		Long: "rik runs containers, microVMs and processes on one machine or many.\n\n" +
			"Start here: rik demo, or rik server and then rikctl get nodes. rik deploy, get, delete\n" +
			"and debug are the commands of rikctl with these names; rikctl has many more.",
	}
	command.AddCommand(serverCommand(), demoCommand(), simulateCommand(), recovery.Command(), datastoreCommand(), checkCommand(), repairCommand())
	command.AddCommand(node.Commands()...)
	command.AddCommand(node.InstallCommand("rik", checkServerFlags))
	command.AddCommand(node.DoctorCommand(doctor.RoleServer))
	return command
}

// checkServerFlags returns an error if "rik server" would not accept the flags.
func checkServerFlags(flags []string) error {
	c := quiet(serverCommand())
	if err := c.ParseFlags(flags); err != nil {
		return fmt.Errorf("%w: flags of the server: %w", errUsage, err)
	}
	return noArgs(c, c.Flags().Args())
}

// quiet makes Main print the errors of a command, and marks errors of its flags.
func quiet(c *cobra.Command) *cobra.Command {
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	return c
}

func serverCommand() *cobra.Command {
	f := newFlags()
	c := &cobra.Command{
		Use:   "server",
		Short: "Run a whole cluster on this machine: API, controller, scheduler and node",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withLog(&f, func(log *slog.Logger) error { return runServer(c.Context(), &f, log) })
		},
	}
	f.server(c.Flags())
	return c
}

func controllerCommand() *cobra.Command {
	f := newFlags()
	c := &cobra.Command{
		Use:   "controller",
		Short: "Run only the API server and the controller",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withLog(&f, func(log *slog.Logger) error { return runController(c.Context(), &f, log) })
		},
	}
	f.common(c.Flags())
	f.listening(c.Flags())
	f.plane(c.Flags())
	f.nodeTimeout(c.Flags())
	f.legacy(c.Flags())
	c.Flags().StringVar(&f.schedulerURL, "scheduler-url", env("SCHEDULER_URL", "http://localhost:4996"),
		"address of the scheduler; the connection always uses TLS with the cluster's certificate authority [SCHEDULER_URL]")
	return c
}

func schedulerCommand() *cobra.Command {
	f := newFlags()
	c := &cobra.Command{
		Use:   "scheduler",
		Short: "Run only the scheduler",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withLog(&f, func(log *slog.Logger) error { return runScheduler(c.Context(), &f, log) })
		},
	}
	f.common(c.Flags())
	f.listening(c.Flags())
	f.schedulerPorts(c.Flags())
	f.nodeTimeout(c.Flags())
	c.Flags().IntVar(&f.scheduler.ControllerPort, "scheduler-port", f.scheduler.ControllerPort, "port for the connection of the controller")
	f.legacy(c.Flags())
	return c
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: unexpected argument %q", errUsage, args[0])
	}
	return nil
}

// withLog calls run with the logger that the flags describe.
func withLog(f *flags, run func(*slog.Logger) error) error {
	log, err := f.log.Logger(os.Stderr)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return run(log)
}
