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
	for _, tc := range []struct {
		script, target string
		name           string // of the demo; none begins with another's
		running        int    // how often something is shown running
		said           string // by the instances, and how often
		times          int
	}{
		{"hack/demo.sh", "make demo-down", "rik-e2e-demo", 3, " says: ", 3},
		// Nine between the instances, one by name, three from outside.
		{"hack/demo-multinode.sh", "make demo-multinode-down", "rik-e2e-nodes", 3, " hears: hello from ", 13},
		// Each is listed by its kind and as an instance, and answers once.
		{"hack/demo-function.sh", "make demo-function-down", "rik-e2e-function", 2, "\nhello from hello-", 1},
		{"hack/demo-app.sh", "make demo-app-down", "rik-e2e-app", 2, "\nhello from hello-", 1},
		// Five pods of the Deployment in Kubernetes, two instances in the rik cluster.
		{"hack/demo-multicluster.sh", "make demo-multicluster-down", "rik-e2e-clusters", 7, " says: ", 2},
	} {
		t.Run(tc.script, func(t *testing.T) {
			if !rikcluster.Alone(t) {
				return
			}
			t.Cleanup(func() { demo(t, tc.name, tc.script, "down") })
			out := demo(t, tc.name, tc.script, "up")
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
			if again := demo(t, tc.name, tc.script, "up"); !strings.Contains(again, "runs already") {
				t.Errorf("a second demo says:\n%s", again)
			}
			for _, which := range []string{"the end", "a second end"} {
				if out := demo(t, tc.name, tc.script, "down"); !strings.Contains(out, "nothing is left") {
					t.Errorf("%s of the demo says:\n%s", which, out)
				}
			}
		})
	}
}

// demo runs a demo's script.
func demo(t *testing.T, name, script, what string) string {
	t.Helper()
	cmd := exec.Command(script, what)
	cmd.Dir = "../.."
	cmd.Env = append(cmd.Environ(), "RIK_DEMO_NAME="+name, "RIK_BIN="+rikcluster.Bin(t))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", script, what, err, out)
	}
	return string(out)
}
