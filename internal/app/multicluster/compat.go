package multicluster

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// ExitError ends a program with a given exit code.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string { return e.Err.Error() }

func (e *ExitError) Unwrap() error { return e.Err }

// exitUnusable is the exit code of compat if there is nothing to compare: the command line is
// wrong, or a file does not contain a CRD.
const exitUnusable = 2

func unusable(format string, args ...any) error {
	return &ExitError{Code: exitUnusable, Err: fmt.Errorf(format, args...)}
}

// errIncompatible and errNoDenominator are the negative results of compat.
var (
	errIncompatible  = errors.New("NEW cannot hold everything that OLD accepts")
	errNoDenominator = errors.New("there is no type that both OLD and NEW can hold")
)

// compat contains the flags and arguments of the command.
type compat struct {
	old, new string
	lcd      bool
	format   string

	in              io.Reader
	out, complaints io.Writer
}

func compatCommand() *cobra.Command {
	c := compat{}
	command := &cobra.Command{
		Use:   "compat OLD NEW [flags]",
		Short: "Compare two CRDs: can NEW hold everything that OLD accepts?",
		Long: "compat reads two CustomResourceDefinitions of one type, as YAML or JSON, one in each\n" +
			"file; - is standard input. It says whether every object that is valid under OLD is\n" +
			"valid under NEW, with nothing of it pruned or changed, and names each field that\n" +
			"stands in the way, with an object as an example. Every version that OLD serves has\n" +
			"to be served by NEW.\n\n" +
			"With --lcd it writes the largest type that both can hold (the lowest common\n" +
			"denominator) as a CRD instead, and says on standard error what had to be left out.\n" +
			"It has the versions that both serve. If one of these has nothing in common, there\n" +
			"is no such CRD.\n\n" +
			"Exit codes:\n" +
			"  0  compatible; with --lcd: the CRD was written\n" +
			"  1  incompatible; with --lcd: there is none\n" +
			"  2  nothing was compared: wrong flags, or input that is not two CRDs of one type\n" +
			"     with structural schemas",
		Example: "  compat old.yaml new.yaml\n" +
			"  kubectl get crd widgets.example.dev -o yaml | compat - new.yaml -o json\n" +
			"  compat east.yaml west.yaml --lcd > both.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return unusable("%d files are given: give OLD and NEW (see compat --help)", len(args))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			c.old, c.new = args[0], args[1]
			c.in, c.out, c.complaints = command.InOrStdin(), command.OutOrStdout(), command.ErrOrStderr()
			return c.run()
		},
	}
	command.Flags().BoolVar(&c.lcd, "lcd", false, "write the CRD that both can hold to standard output")
	command.Flags().StringVarP(&c.format, "output", "o", "text", "text or json; with --lcd, text is the CRD as YAML")
	return command
}

func (c *compat) run() error {
	if c.format != "text" && c.format != "json" {
		return unusable("--output %q: use text or json", c.format)
	}
	if c.old == "-" && c.new == "-" {
		return unusable("OLD and NEW cannot both be standard input")
	}
	before, errBefore := readCRD(c.in, c.old)
	after, errAfter := readCRD(c.in, c.new)
	if err := errors.Join(errBefore, errAfter); err != nil {
		return unusable("%w", err)
	}
	if err := sameType(before, after); err != nil {
		return unusable("%w", err)
	}
	offers, errBefore := offersOf(before, "OLD", c.old)
	others, errAfter := offersOf(after, "NEW", c.new)
	if err := errors.Join(errBefore, errAfter); err != nil {
		return unusable("%w", err)
	}
	r := &report{Name: before.Name, Old: c.old, New: c.new}
	if c.lcd {
		r.meet(before, after, offers, others)
	} else {
		r.compare(before, after, offers, others)
	}
	if err := c.write(r); err != nil {
		return &ExitError{Code: exitUnusable, Err: fmt.Errorf("writing the answer: %w", err)}
	}
	return r.err(c.lcd)
}
