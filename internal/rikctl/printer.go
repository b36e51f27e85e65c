package rikctl

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/describe"
	"sigs.k8s.io/yaml"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// orNone returns the text, or "<none>" if it is empty.
func orNone(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}

// field writes one line with a name and a value, "<none>" for an empty value.
func field(w describe.PrefixWriter, level int, name string, value any) {
	w.Write(level, "%s:\t%s\n", name, orNone(fmt.Sprint(value)))
}

// optional writes a line only if the value is not empty.
func optional(w describe.PrefixWriter, level int, name, value string) {
	if value != "" {
		field(w, level, name, value)
	}
}

// mebibytes uses one unit for all values, so that columns can be compared and sorted.
func mebibytes(n int64) string { return fmt.Sprintf("%dMi", n>>20) }

// runs summarizes what a template runs.
func runs(t *rikv1alpha1.InstanceTemplate) string {
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

// outputs lists the values of -o for output that is not API objects.
var outputs = []string{"json", "yaml"}

// addOutput adds the flag -o.
func addOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", "json or yaml, or text when empty")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
}

// checkOutput refuses other values of -o.
func checkOutput(cmd *cobra.Command, output string) error {
	if output != "" && !slices.Contains(outputs, output) {
		return cmdline.Errorf(cmd, "--output %q: it is json or yaml", output)
	}
	return nil
}

// printData writes a value that is not an API object as JSON or YAML.
func printData(out io.Writer, data any, output string) error {
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
