package rikctl

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	_ "rik.dev/rik/internal/rikctl/notranslate" // before kubectl's commands are initialized
)

// name is the name of the program.
const name = "rikctl"

// explains returns the next step after a mistake in the command line of a command.
func explains(command string) string {
	return fmt.Sprintf("%q explains the command", command+" --help")
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

// usageOf makes an error a usageError of a command.
func usageOf(cmd *cobra.Command, err error) error { return usageError{cmd.CommandPath(), err} }

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

// group makes a command the parent of others: alone it prints its help.
func group(parent *cobra.Command, children ...*cobra.Command) *cobra.Command {
	parent.Args = subcommand
	parent.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	parent.AddCommand(children...)
	return parent
}

// args wraps a check of the arguments, so that its errors are usage errors.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := check(cmd, given); err != nil {
			return usageOf(cmd, err)
		}
		return nil
	}
}

// indent formats the examples of a command's help.
func indent(example string) string {
	if example == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(strings.TrimSpace(example), "\n", "\n  ")
}

// asCommand formats a command line for a shell.
func asCommand(args []string) string {
	words := append([]string{name}, args...)
	for i, word := range words {
		words[i] = quoted(word)
	}
	return strings.Join(words, " ")
}

// quoted quotes a word for a shell.
func quoted(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\n'\"\\$`&|;<>()*?[]#~!{}") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
