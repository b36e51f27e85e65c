// Package printer has the forms of output that several commands share: lines of a description,
// amounts, and values as JSON or YAML.
package printer

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/describe"
	"sigs.k8s.io/yaml"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// OrNone returns the text, or "<none>" if it is empty.
func OrNone(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}

// Field writes one line with a name and a value, "<none>" for an empty value.
func Field(w describe.PrefixWriter, level int, name string, value any) {
	w.Write(level, "%s:\t%s\n", name, OrNone(fmt.Sprint(value)))
}

// Optional writes a line only if the value is not empty.
func Optional(w describe.PrefixWriter, level int, name, value string) {
	if value != "" {
		Field(w, level, name, value)
	}
}

// Mebibytes uses one unit for all values, so that columns can be compared and sorted.
func Mebibytes(n int64) string { return fmt.Sprintf("%dMi", n>>20) }

// Runs summarizes what a template runs.
func Runs(t *rikv1alpha1.InstanceTemplate) string {
	var words []string
	for i := range t.Containers {
		words = append(words, t.Containers[i].Image)
	}
	if t.Function != nil {
		words = append(words, t.Function.Execution.Rootfs+t.Function.Execution.Image)
	}
	if t.App != nil {
		words = append(words, strings.TrimSuffix(t.App.Repo+"@"+t.App.Version, "@"))
	}
	return strings.Join(words, ",")
}

// Outputs lists the values of -o for output that is not API objects.
var Outputs = []string{"json", "yaml"}

// AddOutput adds the flag -o.
func AddOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", "json or yaml, or text when empty")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(Outputs, cobra.ShellCompDirectiveNoFileComp))
}

// CheckOutput refuses other values of -o.
func CheckOutput(cmd *cobra.Command, output string) error {
	if output != "" && !slices.Contains(Outputs, output) {
		return cmdline.Errorf(cmd, "--output %q is not supported; use json or yaml", output)
	}
	return nil
}

// Outcome is the part of a result that every command that waits has.
type Outcome struct {
	// Error is the error with which the command ends, as on the standard error.
	Error string `json:"error,omitempty"`
}

// Steps returns the stream for the steps of a command that waits: the standard output, or the
// standard error if the standard output has a result for scripts.
func Steps(s genericiooptions.IOStreams, output string) io.Writer {
	if output != "" {
		return s.ErrOut
	}
	return s.Out
}

// Result ends a command that waits: it writes the result with its error as one document, if
// --output asks for one, and returns the error. outcome is part of result, which is a pointer.
func Result(out io.Writer, output string, result any, outcome *Outcome, err error) error {
	if output == "" {
		return err
	}
	if err != nil {
		outcome.Error = err.Error()
	}
	written := Data(out, result, output)
	if err != nil {
		return err
	}
	return written
}

// Data writes a value that is not an API object as JSON or YAML.
func Data(out io.Writer, data any, output string) error {
	text, err := json.MarshalIndent(data, "", "    ")
	if err == nil && output == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", output, err)
	}
	_, err = fmt.Fprintln(out, strings.TrimRight(string(text), "\n"))
	return err
}
