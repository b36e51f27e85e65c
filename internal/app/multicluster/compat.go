package multicluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	schemacompat "rik.dev/rik/internal/multicluster/schema/compat"
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
	errIncompatible  = errors.New("NEW does not accept every object that OLD accepts")
	errNoDenominator = errors.New("OLD and NEW have no common type")
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
		Short: "Compare two CRDs: does NEW accept every object that OLD accepts?",
		Long: "compat reads two CustomResourceDefinitions of one type, as YAML or JSON, one in each\n" +
			"file; - is standard input. It checks whether every object that is valid under OLD is\n" +
			"valid under NEW and keeps all its fields there. It prints each field that prevents\n" +
			"this, with an object as an example. NEW must serve every version that OLD serves.\n\n" +
			"With --lcd it writes the largest type whose objects both accept (the lowest common\n" +
			"denominator) as a CRD instead, and prints on standard error what it left out.\n" +
			"The CRD has the versions that both serve. If a version has no common type, there\n" +
			"is no CRD.\n\n" +
			"Exit codes:\n" +
			"  0  compatible; with --lcd: the CRD was written.\n" +
			"  1  incompatible; with --lcd: there is no common CRD.\n" +
			"  2  nothing was compared: wrong flags, or input that is not two CRDs of one type\n" +
			"     with structural schemas.",
		Example: "  compat old.yaml new.yaml\n" +
			"  kubectl get crd widgets.example.dev -o yaml | compat - new.yaml -o json\n" +
			"  compat east.yaml west.yaml --lcd > both.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return unusable("expected the two files OLD and NEW, got %d (see compat --help)", len(args))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			c.old, c.new = args[0], args[1]
			c.in, c.out, c.complaints = command.InOrStdin(), command.OutOrStdout(), command.ErrOrStderr()
			return c.run()
		},
	}
	command.Flags().BoolVar(&c.lcd, "lcd", false, "write the lowest common denominator of both CRDs to standard output")
	command.Flags().StringVarP(&c.format, "output", "o", "text", "output format: text or json; with --lcd, text is the CRD as YAML")
	return command
}

func (c *compat) run() error {
	if c.format != "text" && c.format != "json" {
		return unusable("--output %q: use text or json", c.format)
	}
	if c.old == "-" && c.new == "-" {
		return unusable("OLD and NEW cannot both be standard input")
	}
	before, errBefore := c.read(c.old)
	after, errAfter := c.read(c.new)
	if err := errors.Join(errBefore, errAfter); err != nil {
		return unusable("%w", err)
	}
	answer, negative := schemacompat.Compare, errIncompatible
	if c.lcd {
		answer, negative = schemacompat.Meet, errNoDenominator
	}
	r, err := answer(before, after)
	if err != nil {
		return unusable("%w", err)
	}
	if err := c.write(r); err != nil {
		return &ExitError{Code: exitUnusable, Err: fmt.Errorf("writing the result: %w", err)}
	}
	if r.LCD == nil && (r.Compatible == nil || !*r.Compatible) {
		return &ExitError{Code: 1, Err: negative}
	}
	return nil
}

// read reads a file that contains exactly one CRD. "-" means the standard input.
func (c *compat) read(file string) (schemacompat.Input, error) {
	input, in := schemacompat.Input{File: file}, c.in
	if file != "-" {
		f, err := os.Open(file) //nolint:gosec // the user names the file
		if err != nil {
			return input, err
		}
		defer f.Close() //nolint:errcheck // it was only read
		in = f
	} else {
		file = "standard input"
	}
	var err error
	if input.CRD, err = schemacompat.Read(in); err != nil {
		return input, fmt.Errorf("%s: %w", file, err)
	}
	return input, nil
}

// write prints the report as text or JSON.
func (c *compat) write(r *schemacompat.Report) error {
	if c.format == "json" {
		encoder := json.NewEncoder(c.out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	if !c.lcd {
		return r.WriteText(c.out)
	}
	if err := r.WriteText(c.complaints); err != nil || r.LCD == nil {
		return err
	}
	raw, err := yaml.Marshal(r.LCD)
	if err != nil {
		return err
	}
	_, err = c.out.Write(raw)
	return err
}
