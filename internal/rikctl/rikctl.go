package rikctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/internal/rikctl/config"
	_ "rik.dev/rik/internal/rikctl/notranslate" // before kubectl's commands are initialized
	"rik.dev/rik/internal/version"
)

const name = "rikctl"

// tool holds what all commands share.
type tool struct {
	streams genericiooptions.IOStreams
	getter  *getter
	factory cmdutil.Factory
}

// building allows one construction of a command tree at a time. The packages under kubectl's
// commands write global state during construction, such as the table of feature gates and the
// translations.
var building sync.Mutex

// processOnce sets the global state of the libraries. kubectl's commands call a function instead
// of returning an error; this function has no state, so commands may run at the same time. The
// log of the libraries is off, because the command's error reports the same in rikctl's form.
var processOnce = sync.OnceFunc(func() {
	cmdutil.BehaviorOnFatal(func(message string, code int) { panic(fatal{message, code}) })
	var fatally atomic.Pointer[string]
	klog.SetLoggerWithOptions(logr.Discard(), klog.WriteKlogBuffer(func(line []byte) {
		text := string(line)
		fatally.Store(&text)
	}))
	// If a library exits the process, show its last message.
	klog.OsExit = func(int) {
		message := "error: a library gave up"
		if last := fatally.Load(); last != nil {
			_, text, _ := strings.Cut(*last, "] ")
			message += ": " + strings.TrimSpace(text)
		}
		_, _ = fmt.Fprintln(os.Stderr, message)
		os.Exit(ExitError)
	}
})

// fatal is the panic value that carries an error out of kubectl's commands.
type fatal struct {
	message string
	code    int
}

// New builds the command tree. It binds the Flag of source to --config.
func New(streams genericiooptions.IOStreams, source config.Source) *cobra.Command {
	root, _ := newTree(streams, source)
	return root
}

func newTree(streams genericiooptions.IOStreams, source config.Source) (*cobra.Command, *tool) {
	building.Lock()
	defer building.Unlock()
	processOnce()
	t := &tool{streams: streams, getter: newGetter(source, streams.ErrOut)}
	t.factory = cmdutil.NewFactory(t.getter)
	root := &cobra.Command{
		Use:           name,
		Short:         "Run containers, microVMs and processes on a rik cluster",
		Long:          rootLong,
		Version:       version.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          subcommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{cmd.CommandPath(), err} })
	t.getter.addFlags(root.PersistentFlags())
	t.addCommands(root)
	tidy(root)
	validateWords(root)
	return root, t
}

// validateWords makes the commands that cobra adds refuse unknown commands and shells. Otherwise
// they print a page of help and succeed.
func validateWords(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args = subcommand
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		case "help":
			cmd.Args = func(_ *cobra.Command, given []string) error {
				about, rest, err := root.Find(given)
				if err == nil && about.HasSubCommands() {
					err = subcommand(about, rest)
				}
				return err
			}
		}
	}
}

// Execute runs one command line and returns the exit code; see "rikctl help exit-codes". It
// writes errors with the next step to the error stream.
func Execute(ctx context.Context, args []string, streams genericiooptions.IOStreams, source config.Source) int {
	root, t := newTree(streams, source)
	root.SetArgs(args)
	err := run(ctx, root)
	if err == nil {
		return ExitOK
	}
	if t.getter.err != nil {
		err = t.getter.err // kubectl's commands pass on only its text
	}
	o := t.suggestConfig(t.suggestTarget(ctx, t.suggestType(ctx, validate(err, t.getter.server()), args), args), args)
	// A command that exec ran may end with the same code. It has printed its own message.
	if o.code == ExitUsage && o.text != "" && o.next == "" {
		o.next = nextForUsage(root, args)
	}
	o.print(streams.ErrOut)
	return o.code
}

// nextForUsage returns the next step after a usage error in one of kubectl's commands, because
// those errors do not name the command.
func nextForUsage(root *cobra.Command, args []string) string {
	cmd, _, err := root.Find(args)
	if err != nil {
		cmd = root
	}
	return explains(cmd.CommandPath())
}

func explains(command string) string {
	return fmt.Sprintf("%q explains the command", command+" --help")
}

// run executes the tree and converts the panics of kubectl's commands to errors.
func run(ctx context.Context, root *cobra.Command) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case fatal:
			err = &v
		default:
			panic(v)
		}
	}()
	return root.ExecuteContext(ctx)
}

// Error is the text that kubectl would have printed.
func (f *fatal) Error() string { return strings.TrimSpace(f.message) }

// client returns a typed client for rik's own objects.
func (t *tool) client() (client.WithWatch, error) {
	restConfig, err := t.getter.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	mapper, err := t.getter.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	return client.NewWithWatch(restConfig, client.Options{Scheme: scheme, Mapper: mapper})
}

// namespace returns the namespace in which the command acts.
func (t *tool) namespace() (string, error) {
	ns, _, err := t.getter.ToRawKubeConfigLoader().Namespace()
	return ns, err
}

// usageError reports a mistake in the command line.
type usageError struct {
	command string
	err     error
}

// Error is the cause.
func (e usageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e usageError) Unwrap() error { return e.err }

// advisedUsage is a usageError with a next step.
type advisedUsage struct {
	usageError
	next string
}

// Unwrap returns the usageError.
func (e advisedUsage) Unwrap() error { return e.usageError }

// usagef returns a usageError of a command.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	return usageError{cmd.CommandPath(), fmt.Errorf(format, args...)}
}

// subcommand refuses an unknown command and suggests similar ones.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageError{cmd.CommandPath(), errors.New(text)}
}

// args wraps a check of the arguments, so that its errors are usage errors.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := check(cmd, given); err != nil {
			return usageError{cmd.CommandPath(), err}
		}
		return nil
	}
}
