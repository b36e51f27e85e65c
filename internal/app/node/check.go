package node

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/integrity"
	"rik.dev/rik/internal/riklet"
)

// CheckCommand returns the command that checks the files of a stopped node.
func CheckCommand() *cobra.Command {
	o := DefaultOptions()
	var output string
	c := &cobra.Command{
		Use:   "check",
		Short: "Check the files of a stopped node for damage",
		Long: "Check the files of a stopped node for damage: the records of its instances with their checksums,\n" +
			"its certificate, and the term of its cluster. It changes nothing. Stop the service first; the\n" +
			"instances continue to run.\n\nExit codes: 0 if nothing is wrong, 1 otherwise.",
		Example: "  systemctl stop riklet && riklet check; systemctl start riklet",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			report, err := riklet.CheckFiles(o.StateDir)
			if err != nil {
				return err
			}
			return PrintCheck(c.OutOrStdout(), &report, output)
		},
	}
	c.Flags().StringVar(&o.StateDir, "state-dir", o.StateDir, "directory of images and records")
	c.Flags().StringVarP(&output, "output", "o", "", "format: json, or a table by default")
	return c
}

// PrintCheck writes the report of a check. Its error means that there are problems.
func PrintCheck(w io.Writer, report *integrity.Report, output string) error {
	if output != "" && output != "json" {
		return usagef("--output %q: use json", output)
	}
	return errors.Join(report.Print(w, output == "json"), report.Err())
}

// RepairCommand returns the command that removes damaged records of a stopped node.
func RepairCommand() *cobra.Command {
	o := DefaultOptions()
	c := &cobra.Command{
		Use:   "repair",
		Short: "Remove damaged records from the files of a stopped node",
		Long: "Remove damaged records of instances from the files of a stopped node. Each record is saved in a\n" +
			"directory first. At its next start the riklet stops these instances and starts them again: their\n" +
			"volumes on this node are lost. All other instances continue.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return Repair(c.OutOrStdout(), o.StateDir) },
	}
	c.Flags().StringVar(&o.StateDir, "state-dir", o.StateDir, "directory of images and records")
	return c
}

// Repair repairs a state directory and says what it did.
func Repair(w io.Writer, stateDir string) error {
	removed, dir, err := riklet.RepairFiles(stateDir)
	for _, uid := range removed {
		fmt.Fprintf(w, "removed the record of instance %q; it is saved in %s\n", uid, dir)
	}
	if err == nil && len(removed) == 0 {
		fmt.Fprintf(w, "%s: nothing to repair\n", stateDir)
	}
	return err
}
