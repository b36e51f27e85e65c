package served

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/program"
)

// Kubectl runs the real kubectl as the administrator of s and returns its output. A missing
// kubectl is a failure, because a skipped test proves nothing. For "kubectl edit" set
// KUBE_EDITOR with t.Setenv.
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
	// The separate home is for its discovery cache.
	command.Env = append(os.Environ(), "HOME="+tb.TempDir(), "KUBECONFIG="+AdminFile(s.DataDir))
	command.Stdin = strings.NewReader(input)
	out, err := command.CombinedOutput()
	return string(out), err
}
