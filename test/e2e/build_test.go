package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuildsShowTheirProgress runs the script that all builds use, with a command that prints what "go
// build -v" prints.
func TestBuildsShowTheirProgress(t *testing.T) {
	t.Parallel()
	list := filepath.Join(t.TempDir(), "packages")
	if err := os.WriteFile(list, []byte("example.org/a\nexample.org/b\nexample.org/c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, command string
		failed        bool
		want          []string
	}{
		{
			"success", "echo example.org/a; echo example.org/b; sleep 3", false,
			[]string{"    rik: ", "packages compiled: 2 of 3 (example.org/b)", "    rik: done in "},
		},
		{"failure", "echo example.org/a; echo ./a.go:1: no; exit 1", true, []string{"./a.go:1: no", "rik: failed after "}},
		{"a moment", "echo example.org/a", false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			command := exec.CommandContext(t.Context(), "../../hack/progress.sh", "rik", "bash", "-c", tc.command)
			command.Env = append(os.Environ(), "RIK_PACKAGES="+list)
			out, err := command.CombinedOutput()
			if (err != nil) != tc.failed {
				t.Errorf("the script ended with %v, want an error: %t\n%s", err, tc.failed, out)
			}
			for _, text := range tc.want {
				if !strings.Contains(string(out), text) {
					t.Errorf("the script printed no %q:\n%s", text, out)
				}
			}
			if tc.want == nil && len(out) > 0 {
				t.Errorf("a short command printed %q", out)
			}
		})
	}
}
