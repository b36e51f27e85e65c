package rikctl

import (
	"context"
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

	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/config"
	_ "rik.dev/rik/internal/rikctl/notranslate" // before kubectl's commands are initialized
	"rik.dev/rik/internal/rikctl/suggest"
	"rik.dev/rik/internal/version"
)

// tool has the commands. Each of them uses what the Factory gives it.
type tool struct{ *access.Factory }

// building allows one construction of a command tree at a time. The packages under kubectl's
// commands write global state during construction, such as the table of feature gates and the
// translations.
var building sync.Mutex

// processOnce sets the global state of the libraries. kubectl's commands call a function instead
// of returning an error; this function has no state, so commands may run at the same time. The
// log of the libraries is off, because the command's error reports the same in rikctl's form.
var processOnce = sync.OnceFunc(func() {
	cmdutil.BehaviorOnFatal(func(message string, code int) { panic(clierror.FatalError{Message: message, Code: code}) })
	var fatally atomic.Pointer[string]
	klog.SetLoggerWithOptions(logr.Discard(), klog.WriteKlogBuffer(func(line []byte) {
		text := string(line)
		fatally.Store(&text)
	}))
	// If a library exits the process, show its last message.
	klog.OsExit = func(int) {
		message := "error: a library ended the program"
		if last := fatally.Load(); last != nil {
			_, text, _ := strings.Cut(*last, "] ")
			message += ": " + strings.TrimSpace(text)
		}
		_, _ = fmt.Fprintln(os.Stderr, message)
		os.Exit(clierror.ExitError)
	}
})

// New builds the command tree. It binds the Flag of source to --config.
func New(streams genericiooptions.IOStreams, source config.Source) *cobra.Command {
	root, _ := newTree(streams, source)
	return root
}

func newTree(streams genericiooptions.IOStreams, source config.Source) (*cobra.Command, *tool) {
	building.Lock()
	defer building.Unlock()
	processOnce()
	t := &tool{access.NewFactory(source, streams)}
	root := &cobra.Command{
		Use:           cmdline.Program,
		Short:         "Run containers, microVMs and processes on a rik cluster",
		Long:          rootLong,
		Version:       version.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cmdline.Subcommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.SetFlagErrorFunc(cmdline.FlagError)
	t.Getter.AddFlags(root.PersistentFlags())
	t.addCommands(root)
	replaceTexts(root)
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
			cmd.Args = cmdline.Subcommand
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		case "help":
			cmd.Args = func(_ *cobra.Command, given []string) error {
				about, rest, err := root.Find(given)
				if err == nil && about.HasSubCommands() {
					err = cmdline.Subcommand(about, rest)
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
		return clierror.ExitOK
	}
	if t.Getter.Err != nil {
		err = t.Getter.Err // kubectl's commands pass on only its text
	}
	o := suggest.Next(ctx, t.Factory, clierror.OutcomeOf(err, t.Getter.Server()), args)
	// A command that exec ran may end with the same code. It has printed its own message.
	if o.Code == clierror.ExitUsage && o.Text != "" && o.Next == "" {
		o.Next = nextForUsage(root, args)
	}
	o.Print(streams.ErrOut)
	return o.Code
}

// nextForUsage returns the next step after a usage error in one of kubectl's commands, because
// those errors do not name the command.
func nextForUsage(root *cobra.Command, args []string) string {
	cmd, _, err := root.Find(args)
	if err != nil {
		cmd = root
	}
	return cmdline.NextHelp(cmd.CommandPath())
}

// run executes the tree and converts the panics of kubectl's commands to errors.
func run(ctx context.Context, root *cobra.Command) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case clierror.FatalError:
			err = &v
		default:
			panic(v)
		}
	}()
	return root.ExecuteContext(ctx)
}
