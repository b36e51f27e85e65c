package multicluster

import (
	"fmt"

	"github.com/spf13/cobra"

	schemacompat "rik.dev/rik/internal/multicluster/schema/compat"
)

// ExitError ends a program with a given exit code.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string { return e.Err.Error() }

func (e *ExitError) Unwrap() error { return e.Err }

// unusable is the error of a wrong command line of compat.
func unusable(err error) error { return &ExitError{Code: schemacompat.ExitUnusable, Err: err} }

func twoFiles(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return unusable(fmt.Errorf("expected the two files OLD and NEW, got %d (see compat --help)", len(args)))
	}
	return nil
}

func compatCommand() *cobra.Command {
	var c schemacompat.Comparison
	command := &cobra.Command{
		Use: "compat OLD NEW [flags]",
		Example: "  compat old.yaml new.yaml\n" +
			"  kubectl get crd widgets.example.dev -o yaml | compat - new.yaml -o json\n" +
			"  compat east.yaml west.yaml --lcd > both.yaml",
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
		Args: twoFiles,
		RunE: func(command *cobra.Command, args []string) error {
			c.Old, c.New = args[0], args[1]
			c.In, c.Out, c.Complaints = command.InOrStdin(), command.OutOrStdout(), command.ErrOrStderr()
			if err := c.Run(); err != nil {
				return &ExitError{Code: schemacompat.ExitCode(err), Err: err}
			}
			return nil
		},
	}
	command.Flags().BoolVar(&c.LCD, "lcd", false, "write the lowest common denominator of both CRDs to standard output")
	command.Flags().StringVarP(&c.Format, "output", "o", schemacompat.FormatText, "output format: text or json; with --lcd, text is the CRD as YAML")
	return command
}
