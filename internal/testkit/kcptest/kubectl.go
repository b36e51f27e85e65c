package kcptest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"rik.dev/rik/internal/apiserver"
)

// EnvBin names the folder of the built programs; the tests of make set it.
const EnvBin = "RIK_BIN"

// Kubectl runs the real kubectl as the administrator of s and returns all that it
// prints. A kubectl that is not built is a failure: a test left out in silence proves
// nothing. For "kubectl edit" set KUBE_EDITOR with t.Setenv.
func Kubectl(tb testing.TB, s *Server, input string, args ...string) (string, error) {
	tb.Helper()
	program := filepath.Join(programs(tb), "kubectl")
	if _, err := os.Stat(program); err != nil {
		tb.Fatalf("looking for kubectl (make bin/kubectl, or set %s): %v", EnvBin, err)
	}
	command := exec.CommandContext(tb.Context(), program, args...)
	// A home of its own is for its cache of discovery.
	command.Env = append(os.Environ(), "HOME="+tb.TempDir(), "KUBECONFIG="+filepath.Join(s.DataDir, apiserver.KubeconfigFile))
	command.Stdin = strings.NewReader(input)
	out, err := command.CombinedOutput()
	return string(out), err
}

func programs(tb testing.TB) string {
	tb.Helper()
	if dir := os.Getenv(EnvBin); dir != "" {
		return dir
	}
	_, self, _, ok := runtime.Caller(0)
	if !ok {
		tb.Fatalf("the source's place is not known: set %s to the folder of the built programs", EnvBin)
	}
	return filepath.Join(filepath.Dir(self), "..", "..", "..", "bin")
}
