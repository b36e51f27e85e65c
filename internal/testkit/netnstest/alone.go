package netnstest

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// env names the test that runs in a separate process.
const env = "RIK_TEST_ALONE"

// Alone runs the test in a new process with a new network namespace, which has only the
// loopback. In that process it brings the loopback up and returns true. Otherwise it waits for
// that process, fails the test if that failed, and returns false; the caller must then return.
//
//	if !netnstest.Alone(t) {
//		return
//	}
func Alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(env) == t.Name() {
		if out, err := exec.CommandContext(t.Context(), "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Fatalf("setting the loopback up: %v\n%s", err, out)
		}
		return true
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.timeout=10m")
	c.Env = append(os.Environ(), env+"="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("in a network namespace of its own: %v\n%s", err, out)
	}
	return false
}
