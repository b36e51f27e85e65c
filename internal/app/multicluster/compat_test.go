package multicluster

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompatCommand tests the flags and the exit codes of the command. The package schema/compat
// tests the comparison.
func TestCompatCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before, after := filepath.Join(dir, "old.yaml"), filepath.Join(dir, "new.yaml")
	for file, text := range map[string]string{before: gadgetsCRD, after: strings.ReplaceAll(gadgetsCRD, "integer", "string")} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		args       []string
		code       int
		out, fails string
	}{
		"compatible":     {[]string{before, before}, 0, "gadgets.changes.example.org v1: compatible\n", ""},
		"incompatible":   {[]string{before, after}, 1, "incompatible", "NEW does not accept every object"},
		"JSON":           {[]string{before, before, "-o", "json"}, 0, `"compatible": true`, ""},
		"LCD":            {[]string{before, after, "--lcd"}, 0, "kind: CustomResourceDefinition", ""},
		"standard input": {[]string{"-", before}, 0, "compatible", ""},
		"one file":       {[]string{before}, 2, "", "expected the two files OLD and NEW, got 1 (see compat --help)"},
		"no such file":   {[]string{before, dir + "/nowhere"}, 2, "", "nowhere"},
		"a format":       {[]string{before, after, "-o", "xml"}, 2, "", `--output "xml"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			c := compatCommand()
			c.SilenceErrors, c.SilenceUsage = true, true
			c.SetIn(strings.NewReader(gadgetsCRD))
			c.SetOut(&out)
			c.SetErr(&bytes.Buffer{})
			c.SetArgs(tc.args)
			err := c.ExecuteContext(t.Context())
			var exit *ExitError
			code := 0
			if errors.As(err, &exit) {
				code = exit.Code
			} else if err != nil {
				t.Fatalf("compat %q = %v, want an error with an exit code", tc.args, err)
			}
			if code != tc.code || !strings.Contains(out.String(), tc.out) || err != nil && (tc.fails == "" || !strings.Contains(err.Error(), tc.fails)) {
				t.Errorf("compat %q = %d, %v, want %d and %q:\n%s", tc.args, code, err, tc.code, tc.fails, out.String())
			}
		})
	}
}
