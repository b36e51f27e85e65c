package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// finding is a finding in the JSON document of rik doctor.
type finding struct {
	ID, Object, Severity, Message, Affects, Fix string
}

// doctor runs rik doctor for a cluster's machine, and returns its findings that are not ok.
func doctor(t *testing.T, c *rikcluster.Cluster) (found []finding, code int) {
	t.Helper()
	out := c.Rik("doctor", "-o", "json", "--data-dir", c.DataDir(), "--state-dir", c.StateDir(), "--run-dir", c.RunDir())
	var report struct {
		Role     string
		Findings []finding
	}
	if err := json.Unmarshal([]byte(out.Stdout), &report); err != nil {
		t.Fatalf("rik doctor: %v\n%s%s", err, out.Stdout, out.Stderr)
	}
	if report.Role != "server" || len(report.Findings) < 40 {
		t.Errorf("a report about a %s with %d findings", report.Role, len(report.Findings))
	}
	return slices.DeleteFunc(report.Findings, func(f finding) bool { return f.Severity == "ok" }), out.Code
}

// repair requires a finding, runs its command as it is printed, and requires that the finding is gone.
func repair(t *testing.T, c *rikcluster.Cluster, id, says string) {
	t.Helper()
	found, _ := doctor(t, c)
	i := slices.IndexFunc(found, func(f finding) bool { return f.ID == id && strings.Contains(f.Message, says) })
	if i < 0 || found[i].Fix == "" {
		t.Fatalf("no finding %s with a command says %q: %+v", id, says, found)
	}
	path := "PATH=" + c.Bin + ":" + os.Getenv("PATH")
	if out := rikcluster.Command(t, "env", path, "sh", "-c", found[i].Fix); out.Err != nil {
		t.Fatalf("running %q: %v", found[i].Fix, out.Err)
	}
	found, _ = doctor(t, c)
	if i := slices.IndexFunc(found, func(f finding) bool { return f.ID == id }); i >= 0 {
		t.Errorf("after the command there is still %+v", found[i])
	}
}

// TestPrivilegedDoctor runs doctor on the machine of a server with a node: while all is well, with the
// firewall of another program, and after the server has ended.
func TestPrivilegedDoctor(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{})
	image := c.Hello()
	apply(t, c, `
apiVersion: rik.dev/v1alpha1
kind: Workload
metadata: {name: web}
spec:
  deploy: Automatic
  replicas: 1
  containers:
  - {name: web, image: "`+image+`", args: [-listen, ":8080"], ports: [{port: 30080, targetPort: 8080, type: nodePort}], env: [{name: TOKEN, value: c4n4ry5ecretv4lue}]}
`, "web", 0)
	waitReady(c, "web")

	found, code := doctor(t, c)
	for _, f := range found {
		// What the machine of the tests lacks is not the subject.
		ours := slices.ContainsFunc([]string{"server-", "state-", "certificate-", "network-", "firewall-", "port-"}, func(begin string) bool { return strings.HasPrefix(f.ID, begin) })
		if f.Severity == "error" || ours {
			t.Errorf("while all is well: %+v", f)
		}
	}
	if code != 0 {
		t.Errorf("the exit code is %d", code)
	}

	bundle := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if out := c.Rik("debug", "bundle", "--local=false", "-f", bundle); out.Err != nil {
		t.Fatal(out.Err)
	}
	all := rikcluster.Command(t, "tar", "-xzOf", bundle)
	if all.Err != nil || !strings.Contains(all.Stdout, "name: TOKEN") || !strings.Contains(all.Stdout, "Running      1") || strings.Contains(all.Stdout, "c4n4ry") {
		t.Errorf("the bundle: %v, with %d bytes", all.Err, len(all.Stdout))
	}

	// The variant of iptables that rik does not use.
	other := "iptables-legacy"
	if out := rikcluster.Command(t, "iptables-legacy-save"); strings.Contains(out.Stdout, "RIKLET") {
		other = "iptables-nft"
	}
	if out := rikcluster.Command(t, other, "-P", "FORWARD", "DROP"); out.Err != nil {
		t.Fatal(out.Err)
	}
	repair(t, c, "firewall-forward", "drops forwarded packets by default")
	for _, args := range [][]string{{"-P", "FORWARD", "ACCEPT"}, {"-F", "FORWARD"}} {
		if out := rikcluster.Command(t, other, args...); out.Err != nil {
			t.Error(out.Err)
		}
	}

	c.Process("server").Stop()
	found, code = doctor(t, c)
	if code != 1 || !slices.ContainsFunc(found, func(f finding) bool {
		return f.ID == "server-reachable" && f.Severity == "error" && f.Object == "127.0.0.1:5000" && f.Fix == "systemctl start rik"
	}) {
		t.Errorf("after the end of the server, with the code %d: %+v", code, found)
	}
	repair(t, c, "state-leftover", "its instances still exist: the network devices rik")
}
