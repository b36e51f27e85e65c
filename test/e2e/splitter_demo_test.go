package e2e

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedSplitDemo runs make demo-split and its end after the build: ten replicas over
// two rik clusters, scaled to seven, one cluster disconnected and connected again, with requests
// all the time.
func TestPrivilegedSplitDemo(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	demo := func(what string) string {
		t.Helper()
		return demo(t, "hack/demo-split.sh", what, "RIK_DEMO_NAME=rik-e2e-split", "RIK_DEMO_NODE=--vmm=none")
	}
	t.Cleanup(func() { demo("down") })
	requireGone := unstopped(t, "rik-e2e-split")
	out := demo("up")
	requireGone()
	if diff := cmp.Diff(demoSteps, measuredCounts(out)); diff != "" {
		t.Errorf("what ran in the clusters (-want +got):\n%s\n%s", diff, out)
	}
	requests, failures := counted(t, out, "requests"), counted(t, out, "failures")
	t.Logf("%d requests, %d failures", requests, failures)
	// If a cable is disconnected during a request, the client sends the request to the other
	// cluster.
	if requests < 1000 || failures > requests/1000 {
		t.Errorf("%d of %d requests failed:\n%s", failures, requests, out)
	}
	if again := demo("up"); !strings.Contains(again, "already runs") {
		t.Errorf("a second demo says:\n%s", again)
	}
	for _, which := range []string{"the end", "a second end"} {
		if out := demo("down"); !strings.Contains(out, "nothing is left") {
			t.Errorf("%s of the demo says:\n%s", which, out)
		}
	}
}

// demoSteps is how many containers run in east and west: at first, after scaling, with west
// disconnected, where its three still run, and after it is back.
var demoSteps = [][2]string{{"5", "5"}, {"4", "3"}, {"7", "3"}, {"4", "3"}}

var reallyRuns = regexp.MustCompile(`(?s)east really runs (\d+) containers\n.*?west really runs (\d+) containers\n`)

// measuredCounts returns the numbers that the demo found in the clusters' cgroups.
func measuredCounts(out string) [][2]string {
	var found [][2]string
	for _, m := range reallyRuns.FindAllStringSubmatch(out, -1) {
		found = append(found, [2]string{m[1], m[2]})
	}
	return found
}

// counted returns a number from the final output of the stream of requests.
func counted(t *testing.T, out, what string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + what + `\s+(\d+)`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("the demo does not say how many %s there were:\n%s", what, out)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
