package compat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/yaml"
)

// The output formats of a [Comparison].
const (
	FormatText = "text"
	FormatJSON = "json"
)

// The negative results of a [Comparison].
var (
	ErrIncompatible = errors.New("NEW does not accept every object that OLD accepts")
	ErrNoLCD        = errors.New("OLD and NEW have no common type")
)

// The exit codes of a program that runs a [Comparison].
const (
	exitNegative = 1
	// ExitUnusable means that nothing was compared: the command line is wrong, or a file does not
	// contain a CRD.
	ExitUnusable = 2
)

// ExitCode returns the exit code for an error of [Comparison.Run].
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrIncompatible), errors.Is(err, ErrNoLCD):
		return exitNegative
	default:
		return ExitUnusable
	}
}

// standardInput as the name of a file means the standard input.
const standardInput = "-"

// Comparison reads two files with one CRD each, compares the CRDs and writes the result.
type Comparison struct {
	// Old and New are the files. One of them may be "-", which means In.
	Old, New string
	// LCD writes the lowest common denominator instead of the comparison.
	LCD bool
	// Format is FormatText or FormatJSON.
	Format string

	In io.Reader
	// Out receives the result. Complaints receives what the LCD leaves out.
	Out, Complaints io.Writer
}

// Run returns ErrIncompatible or ErrNoLCD if the result is negative, and another error if nothing
// could be compared.
func (c *Comparison) Run() error {
	if c.Format != FormatText && c.Format != FormatJSON {
		return fmt.Errorf("--output %q: use text or json", c.Format)
	}
	if c.Old == standardInput && c.New == standardInput {
		return errors.New("OLD and NEW cannot both be standard input")
	}
	before, errBefore := c.read(c.Old)
	after, errAfter := c.read(c.New)
	if err := errors.Join(errBefore, errAfter); err != nil {
		return err
	}
	answer, negative := Compare, ErrIncompatible
	if c.LCD {
		answer, negative = Meet, ErrNoLCD
	}
	r, err := answer(before, after)
	if err != nil {
		return err
	}
	if err := c.write(r); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	if r.LCD == nil && (r.Compatible == nil || !*r.Compatible) {
		return negative
	}
	return nil
}

// read reads a file that contains exactly one CRD.
func (c *Comparison) read(file string) (Input, error) {
	input, in := Input{File: file}, c.In
	if file != standardInput {
		f, err := os.Open(file)
		if err != nil {
			return input, err
		}
		defer f.Close()
		in = f
	} else {
		file = "standard input"
	}
	var err error
	if input.CRD, err = Read(in); err != nil {
		return input, fmt.Errorf("%s: %w", file, err)
	}
	return input, nil
}

// write prints the report as text or JSON.
func (c *Comparison) write(r *Report) error {
	if c.Format == FormatJSON {
		encoder := json.NewEncoder(c.Out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	if !c.LCD {
		return r.WriteText(c.Out)
	}
	if err := r.WriteText(c.Complaints); err != nil || r.LCD == nil {
		return err
	}
	raw, err := yaml.Marshal(r.LCD)
	if err != nil {
		return err
	}
	_, err = c.Out.Write(raw)
	return err
}
