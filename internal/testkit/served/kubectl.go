package served

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/program"
)

// Kubectl runs the real kubectl as the administrator of s and returns all that it
// prints. A kubectl that is not built is a failure: a test left out in silence proves
// nothing. For "kubectl edit" set KUBE_EDITOR with t.Setenv.
func (s *Server) Kubectl(tb testing.TB, input string, args ...string) (string, error) {
	tb.Helper()
	dir, err := program.Dir()
	if err != nil {
		tb.Fatal(err)
	}
	kubectl := filepath.Join(dir, "kubectl")
	if _, err := os.Stat(kubectl); err != nil {
		tb.Fatalf("looking for kubectl (make bin/kubectl, or set %s): %v", program.EnvBin, err)
	}
	command := exec.CommandContext(tb.Context(), kubectl, args...)
	// A home of its own is for its cache of discovery.
	command.Env = append(os.Environ(), "HOME="+tb.TempDir(), "KUBECONFIG="+AdminFile(s.DataDir))
	command.Stdin = strings.NewReader(input)
	out, err := command.CombinedOutput()
	return string(out), err
}
