package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedDemo does what make demo and its like, and their ends, do after the
// build, under other names than demos that may run on this machine.
func TestPrivilegedDemo(t *testing.T) {
	privileged.Require(t)
	t.Parallel()
	const noVMM = "--vmm=none"
	for _, tc := range []struct {
		script, target string
		name           string // of the demo; none begins with another's
		node           string // flags
		running        int    // how often something is shown running
		said           string // by the instances, and how often
		times          int
	}{
		{"hack/demo.sh", "make demo-down", "rik-e2e-demo", noVMM, 3, " says: ", 3},
		// Nine between the instances, one by name, three from outside.
		{"hack/demo-multinode.sh", "make demo-multinode-down", "rik-e2e-nodes", noVMM, 3, " hears: hello from ", 13},
		// Each is listed by its kind and as an instance, and answers once.
		{"hack/demo-function.sh", "make demo-function-down", "rik-e2e-function", "", 2, "\nhello from hello-", 1},
		{"hack/demo-app.sh", "make demo-app-down", "rik-e2e-app", noVMM, 2, "\nhello from hello-", 1},
		// Five pods of the Deployment in Kubernetes, two instances in the rik cluster.
		{"hack/demo-multicluster.sh", "make demo-multicluster-down", "rik-e2e-clusters", noVMM, 7, " says: ", 2},
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
			out := demo("up")
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
			if again := demo("up"); !strings.Contains(again, "runs already") {
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

// demo runs a demo's script.
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
