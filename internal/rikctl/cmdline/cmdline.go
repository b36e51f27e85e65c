// Package cmdline has what commands share to read a command line: usage errors, checks of
// arguments, examples in help, and command lines to suggest to the user.
package cmdline

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Program is the name of the program, with which suggested command lines start.
const Program = "rikctl"

// NextHelp returns the next step after a mistake in the command line of a command.
func NextHelp(command string) string {
	return fmt.Sprintf("%q explains the command", command+" --help")
}

// UsageError reports a mistake in the command line.
type UsageError struct {
	// Command is the full name of the command, such as "rikctl get".
	Command string
	err     error
}

// New returns the UsageError of a command.
func New(command string, err error) UsageError { return UsageError{command, err} }

// Error is the cause.
func (e UsageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e UsageError) Unwrap() error { return e.err }

// AdvisedError is a UsageError with a next step of its own.
type AdvisedError struct {
	UsageError
	Next string
}

// WithNext adds a next step to a UsageError.
func WithNext(err UsageError, next string) AdvisedError { return AdvisedError{err, next} }

// Unwrap returns the UsageError.
func (e AdvisedError) Unwrap() error { return e.UsageError }

// Wrap makes an error a UsageError of a command.
func Wrap(cmd *cobra.Command, err error) error { return UsageError{cmd.CommandPath(), err} }

// Errorf returns a UsageError of a command.
func Errorf(cmd *cobra.Command, format string, args ...any) error {
	return UsageError{cmd.CommandPath(), fmt.Errorf(format, args...)}
}

// Subcommand refuses an unknown command and suggests similar ones.
func Subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return UsageError{cmd.CommandPath(), errors.New(text)}
}

// Group makes a command the parent of others: alone it prints its help.
func Group(parent *cobra.Command, children ...*cobra.Command) *cobra.Command {
	parent.Args = Subcommand
	parent.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	parent.AddCommand(children...)
	return parent
}

// Args wraps one of cobra's checks of the number of arguments. Its errors are usage errors, and say how
// to write the command.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		switch err := check(cmd, given); {
		case err == nil:
			return nil
		case len(given) == 0:
			return Errorf(cmd, "an argument is missing: write %s", cmd.UseLine())
		default:
			return Errorf(cmd, "wrong number of arguments (%d): write %s", len(given), cmd.UseLine())
		}
	}
}

// FlagError makes an error about a flag a usage error. If the command line has an unknown command in
// front of the flag, that is the error.
func FlagError(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		return Subcommand(cmd, words)
	}
	return Wrap(cmd, err)
}

// Example formats the examples of a command's help.
func Example(example string) string {
	if example == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(strings.TrimSpace(example), "\n", "\n  ")
}

// CommandLine formats a command line for a shell.
func CommandLine(args []string) string {
	words := append([]string{Program}, args...)
	for i, word := range words {
		words[i] = Quote(word)
	}
	return strings.Join(words, " ")
}

// Quote quotes a word for a shell.
func Quote(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\n'\"\\$`&|;<>()*?[]#~!{}") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
