package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedDemo runs the scripts of make demo and the other demos, and their ends, after
// the build. It uses other names than demos that may run on this machine.
func TestPrivilegedDemo(t *testing.T) {
	privileged.Require(t)
	t.Parallel()
	const noVMM = "--vmm=none"
	for _, tc := range []struct {
		script, target string
		name           string // of the demo; no name is a prefix of another
		node           string // flags
		running        int    // how often an object is shown as running
		said           string // by the instances, and how often
		times          int
		fresh          bool // it removes what an earlier one left; the others continue with it
	}{
		{"hack/demo.sh", "make demo-down", "rik-e2e-demo", noVMM, 3, " says: ", 3, false},
		// Nine between the instances, one by name, three from outside.
		{"hack/demo-multinode.sh", "make demo-multinode-down", "rik-e2e-nodes", noVMM, 3, " receives: hello from ", 13, true},
		// Each is listed by its kind and as an instance, and answers once.
		{"hack/demo-function.sh", "make demo-function-down", "rik-e2e-function", "", 2, "\nhello from hello-", 1, false},
		{"hack/demo-app.sh", "make demo-app-down", "rik-e2e-app", noVMM, 2, "\nhello from hello-", 1, false},
		// Five pods of the Deployment in Kubernetes, two instances in the rik cluster.
		{"hack/demo-multicluster.sh", "make demo-multicluster-down", "rik-e2e-clusters", noVMM, 7, " says: ", 2, true},
	} {
		t.Run(tc.script, func(t *testing.T) {
			if !rikcluster.Alone(t) {
				return
			}
			demo := func(what string) string {
				t.Helper()
				return demo(t, tc.script, what, "RIK_DEMO_NAME="+tc.name, "RIK_DEMO_NODE="+tc.node)
			}
			t.Cleanup(func() { demo("down") })
			requireGone := unstopped(t, tc.name)
			out := demo("up")
			if tc.fresh {
				requireGone()
			}
			if n := strings.Count(out, "Running"); n != tc.running {
				t.Errorf("%d are shown running, want %d:\n%s", n, tc.running, out)
			}
			if n := strings.Count(out, tc.said); n != tc.times {
				t.Errorf("%d lines say %q, want %d:\n%s", n, tc.said, tc.times, out)
			}
			for _, want := range []string{"hello", tc.target} {
				if !strings.Contains(out, want) {
					t.Errorf("the demo does not say %q:\n%s", want, out)
				}
			}
			if again := demo("up"); !strings.Contains(again, "already runs") {
				t.Errorf("a second demo says:\n%s", again)
			}
			for _, which := range []string{"the end", "a second end"} {
				if out := demo("down"); !strings.Contains(out, "nothing is left") {
					t.Errorf("%s of the demo says:\n%s", which, out)
				}
			}
		})
	}
}

// unstopped creates the leftovers of a demo whose machine restarted: files, and PIDs that belong
// to another process now. The returned function fails unless the files are gone. The other
// process must survive the test.
func unstopped(t *testing.T, name string) (requireGone func()) {
	t.Helper()
	dir := filepath.Join("/var/lib", name)
	otherProcess := exec.Command("sleep", "infinity")
	if err := otherProcess.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- otherProcess.Wait() }()
	t.Cleanup(func() {
		select {
		case err := <-ended:
			t.Errorf("the demo ended a process that was not its own: %v", err)
		default:
			_ = otherProcess.Process.Kill()
			<-ended
		}
	})
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, process := range []string{"server", "kcp", "kube", "stream", "east", "node-1"} {
		if err := os.WriteFile(filepath.Join(dir, process+".pid"), fmt.Appendln(nil, otherProcess.Process.Pid), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	left := filepath.Join(dir, "left")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("remains of an earlier demo are still there: %v", err)
		}
	}
}

// demo runs the script of a demo.
func demo(t *testing.T, script, what string, env ...string) string {
	t.Helper()
	cmd := exec.Command(script, what)
	cmd.Dir = "../.."
	cmd.Env = append(append(cmd.Environ(), "RIK_BIN="+rikcluster.Bin(t)), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", script, what, err, out)
	}
	return string(out)
}
