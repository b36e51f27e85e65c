package printer

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"

	"rik.dev/rik/internal/rikctl/cmdline"
)

// CheckJSON refuses values of -o other than json.
func CheckJSON(cmd *cobra.Command, output string) error {
	if output != "" && output != "json" {
		return cmdline.Errorf(cmd, "--output %q is not supported; use json", output)
	}
	return nil
}

// List writes a list that has no API objects: all of it as JSON, or a table. The cells of header and
// rows are separated by tabs. For a table without rows it writes none to the standard error.
func List(s genericiooptions.IOStreams, asJSON bool, list any, header string, rows []string, none string) error {
	if asJSON {
		encoder := json.NewEncoder(s.Out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(list)
	}
	if len(rows) == 0 {
		_, _ = fmt.Fprintln(s.ErrOut, none)
		return nil
	}
	w := printers.GetNewTabWriter(s.Out)
	_, _ = fmt.Fprintln(w, header)
	for _, row := range rows {
		_, _ = fmt.Fprintln(w, row)
	}
	return w.Flush()
}
