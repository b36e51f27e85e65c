package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/rikcluster"
)

func ended(phase rikv1alpha1.InstancePhase) func(*rikv1alpha1.Instance) bool {
	return func(in *rikv1alpha1.Instance) bool { return in.Status.Phase == phase && len(in.Status.Containers) == 1 }
}

func endsWithCode(t *testing.T, k *kindCell) {
	failed := k.the(once, "Failed", ended(rikv1alpha1.InstanceFailed))
	if code := failed.Status.Containers[0].ExitCode; code == nil || *code != 3 {
		t.Errorf("the exit code is %v, want 3", code)
	}
	if got := k.lines(failed); !slices.Equal(got, []string{"why"}) {
		t.Errorf("the log is %q, want why", got)
	}
	completed := k.the(done, "Completed", ended(rikv1alpha1.InstanceCompleted))
	if code := completed.Status.Containers[0].ExitCode; code == nil || *code != 0 {
		t.Errorf("the exit code is %v, want 0", code)
	}
}

func hasEnvironment(t *testing.T, k *kindCell) {
	in := k.running(serves)
	if got, want := k.lines(in)[0], "env blue hunter2 "+in.Name+" hunter2"; got != want {
		t.Errorf("the process says %q, want %q", got, want)
	}
}

func hasFiles(t *testing.T, k *kindCell) {
	in := k.running(probed)
	out := k.exec(in, "sh", "-c", "cat /etc/settings/color /etc/password/word; echo kept > /work/file; cat /work/file")
	if want := "bluehunter2kept\n"; out.Stdout != want {
		t.Errorf("the files are %q (%v), want %q", out.Stdout, out.Err, want)
	}
	if out := k.exec(in, "touch", "/etc/settings/new"); out.Code == 0 {
		t.Error("a ConfigMap can be written to")
	}
}

// hasProcessorLimit checks the kernel's settings below the instance's cgroup: its limit, and its
// weight, which comes from the request. A microVM also has as many processors as the limit, and
// a tenth of a processor for its VMM.
func hasProcessorLimit(t *testing.T, k *kindCell) {
	in := k.running(serves)
	var quotas, weights []string
	for _, cgroup := range rikcluster.Cgroups(string(in.UID)) {
		quotas = append(quotas, quotasBelow(cgroup)...)
		for _, file := range []string{"cpu.shares", "cpu.weight"} { // of v1 and v2
			if raw, err := os.ReadFile(filepath.Join(cgroup, file)); err == nil {
				weights = append(weights, file+" "+strings.TrimSpace(string(raw)))
			}
		}
	}
	if !slices.Contains(quotas, "100000 100000") {
		t.Errorf("no cgroup of %s has one processor, but %q", in.Name, quotas)
	}
	wanted := []string{"cpu.shares 10", "cpu.weight 4"} // 10m
	if k.virtual() {
		wanted = []string{"cpu.shares 112", "cpu.weight 19"} // 110m
	}
	if !slices.Contains(weights, wanted[0]) && !slices.Contains(weights, wanted[1]) {
		t.Errorf("no cgroup of %s weighs as much as it requests, %q, but %q", in.Name, wanted, weights)
	}
	if !k.virtual() {
		return
	}
	if out := k.exec(in, "nproc"); strings.TrimSpace(out.Stdout) != "1" {
		t.Errorf("the guest has %q processors (%v), want 1", out.Stdout, out.Err)
	}
}

// quotasBelow returns the CPU quotas at and below a cgroup, in the format of version 2, on
// machines with either version.
func quotasBelow(cgroup string) (found []string) {
	_ = filepath.WalkDir(cgroup, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // it went away while we walked
		}
		if raw, err := os.ReadFile(filepath.Join(path, "cpu.max")); err == nil {
			found = append(found, strings.TrimSpace(string(raw)))
		}
		quota, err := os.ReadFile(filepath.Join(path, "cpu.cfs_quota_us"))
		period, err2 := os.ReadFile(filepath.Join(path, "cpu.cfs_period_us"))
		if err == nil && err2 == nil {
			found = append(found, strings.TrimSpace(string(quota))+" "+strings.TrimSpace(string(period)))
		}
		return nil
	})
	return found
}

func hasMemoryLimit(t *testing.T, k *kindCell) {
	in := k.the(memoryHog, "Failed", ended(rikv1alpha1.InstanceFailed))
	status := in.Status.Containers[0]
	if status.ExitCode == nil || *status.ExitCode != 137 || status.Reason != "OOMKilled" {
		t.Errorf("what took all memory ended as %+v, want OOMKilled with code 137", status)
	}
}

func hasProbes(t *testing.T, k *kindCell) {
	in := k.the(probed, "running and not ready", func(in *rikv1alpha1.Instance) bool {
		return in.Status.Phase == rikv1alpha1.InstanceRunning && !in.Status.Ready
	})
	k.must(k.exec(in, "touch", "ready"))
	k.the(probed, "ready", func(in *rikv1alpha1.Instance) bool { return in.Status.Ready })
	before := in.Status.Containers[0].RestartCount
	k.must(k.exec(in, "rm", "alive"))
	k.the(probed, "started again", func(in *rikv1alpha1.Instance) bool {
		return len(in.Status.Containers) == 1 && in.Status.Containers[0].RestartCount > before
	})
	if in.Name != k.running(probed).Name {
		t.Error("it is another instance")
	}
}

func (k *kindCell) must(out rikcluster.Result) {
	k.c.Eventually(func() error { return out.Err })
}

func hasLogs(t *testing.T, k *kindCell) {
	in := k.running(serves)
	greeting := "hello from " + in.Name
	k.c.Eventually(func() error {
		if n := len(k.lines(in)); n < 4 {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	})
	if got := k.c.Rikctl("logs", in.Name, "--tail=2"); strings.Count(got, "\n") != 2 || !strings.Contains(got, greeting+" at ") {
		t.Errorf("--tail=2 gives %q, want two lines of %s", got, greeting)
	}
	follow := k.c.LineReader("logs", "-f", "--tail=1", in.Name)
	at := regexp.QuoteMeta(greeting) + ` at (\S+)`
	first := follow.WaitLine(at)
	if then := follow.WaitLine(at); then[1] == first[1] {
		t.Errorf("-f gives %q twice", then[0])
	}
	follow.Stop()
	// The run before the one that the liveness probe started.
	before := k.running(probed)
	if got := k.c.Rikctl("logs", before.Name, "--previous"); !strings.Contains(got, "hello from "+before.Name) {
		t.Errorf("--previous gives %q", got)
	}
}

func hasExec(t *testing.T, k *kindCell) {
	in := k.running(serves)
	out := k.exec(in, "sh", "-c", "echo out; echo err >&2; exit 7")
	if out.Code != 7 || out.Stdout != "out\n" || !strings.Contains(out.Stderr, "err") {
		t.Errorf("exec gave %q, %q and code %d, want out, err and 7", out.Stdout, out.Stderr, out.Code)
	}
	if out := k.c.RikctlInput("over stdin", "exec", "-i", in.Name, "--", k.bin+"cat"); out.Stdout != "over stdin" {
		t.Errorf("exec -i gave %q, %v", out.Stdout, out.Err)
	}
	for program, code := range map[string]int{"/no/such": 127, "/etc": 126} {
		if out := k.c.TryRikctl("exec", in.Name, "--", program); out.Code != code || !strings.Contains(out.Stderr, program) {
			t.Errorf("exec of %s gave %q and code %d, want its name and %d", program, out.Stderr, out.Code, code)
		}
	}
}

func hasTCP(t *testing.T, k *kindCell) {
	in := k.running(serves)
	want := "hello from " + in.Name
	for _, address := range []string{net.JoinHostPort(in.Status.Address, "8080"), fmt.Sprintf("127.0.0.1:%d", k.port)} {
		k.answers(t.Context(), "http://"+address, want)
	}
	k.eachAsks(want, "hello", "-get", "http://"+net.JoinHostPort(in.Status.Address, "8080"))
}

// answers waits until a URL returns the wanted text.
func (k *kindCell) answers(ctx context.Context, url, want string) {
	k.c.Eventually(func() error {
		if got, err := fetch(ctx, url); err != nil || !strings.Contains(got, want) {
			return fmt.Errorf("%s: %q, %w, want %q", url, got, err, want)
		}
		return nil
	})
}

func hasUDP(_ *testing.T, k *kindCell) {
	in := k.running(probed)
	want := "hello from " + in.Name
	// A host port has no traffic for an instance that is not ready.
	k.must(k.exec(in, "touch", "ready"))
	for _, address := range []string{net.JoinHostPort(in.Status.Address, "5353"), fmt.Sprintf("127.0.0.1:%d", k.port+1)} {
		k.c.Eventually(func() error {
			if got, err := ask(address); err != nil || !strings.Contains(got, want) {
				return fmt.Errorf("%s: %q, %w, want %q", address, got, err, want)
			}
			return nil
		})
	}
	k.eachAsks(want, "hello", "-ask", net.JoinHostPort(in.Status.Address, "5353"))
}

func hasNames(_ *testing.T, k *kindCell) {
	in := k.running(serves)
	name := k.workload(serves)
	for _, host := range []string{name, name + ".default.rik.local"} {
		k.eachAsks("hello from "+in.Name, "hello", "-get", fmt.Sprintf("http://%s:%d/", host, k.port))
	}
}

// hasRestartPolicies deploys the workloads that restart only for the time of the test, because
// each restart boots a guest. For the same reason one restart is enough for a guest; the restart
// decision does not depend on the kind.
func hasRestartPolicies(t *testing.T, k *kindCell) {
	times := int32(2)
	if k.virtual() {
		times = 1
	}
	for workload, said := range map[string]string{again: "again", retries: "try"} {
		if workload == again {
			k.deploy(t, k.c, again, "echo again; exit 0", rikv1alpha1.RestartAlways, nil)
		} else {
			k.deploy(t, k.c, retries, "echo try; exit 1", rikv1alpha1.RestartOnFailure, nil)
		}
		in := k.the(workload, "started again", func(in *rikv1alpha1.Instance) bool {
			return len(in.Status.Containers) == 1 && in.Status.Containers[0].RestartCount >= times
		})
		k.c.Eventually(func() error {
			if got := k.c.Rikctl("get", "instance", in.Name); !strings.Contains(got, "CrashLoopBackOff") {
				return fmt.Errorf("it does not back off:\n%s", got)
			}
			return nil
		})
		if got := k.c.Rikctl("logs", in.Name, "--previous"); got != said+"\n" {
			t.Errorf("the run before said %q, want %q", got, said)
		}
		// Deletion must leave nothing, which the last row checks.
		k.c.Rikctl("delete", "workload", k.workload(workload))
	}
	for workload, phase := range map[string]rikv1alpha1.InstancePhase{done: rikv1alpha1.InstanceCompleted, once: rikv1alpha1.InstanceFailed} {
		if in := k.the(workload, string(phase), ended(phase)); in.Status.Containers[0].RestartCount != 0 {
			t.Errorf("%s was started again: %+v", in.Name, in.Status.Containers)
		}
	}
}

func hasPortForward(t *testing.T, k *kindCell) {
	in := k.running(serves)
	forward := k.c.LineReader("port-forward", in.Name, ":8080")
	address := forward.WaitLine(`^Forwarding from (127\.0\.0\.1:\d+) -> 8080`)[1]
	if got, err := fetch(t.Context(), "http://"+address); err != nil || !strings.Contains(got, "hello from "+in.Name) {
		t.Errorf("through port-forward: %q, %v", got, err)
	}
}

func canBeSuspended(t *testing.T, k *kindCell) {
	in := k.running(serves)
	before, err := k.processOf(in)
	if err != nil {
		t.Fatal(err)
	}
	k.c.Rikctl("suspend", in.Name)
	k.the(serves, "suspended", func(in *rikv1alpha1.Instance) bool { return in.Status.Suspended })
	url := "http://" + net.JoinHostPort(in.Status.Address, "8080")
	silent := func() int {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if got, err := fetch(ctx, url); err == nil {
			t.Errorf("a suspended instance answers %q", got)
		}
		return len(k.lines(in))
	}
	if first, then := silent(), silent(); first != then {
		t.Errorf("a suspended instance logs: %d lines, then %d", first, then)
	}
	k.c.Rikctl("resume", in.Name)
	k.the(serves, "ready and not suspended", func(in *rikv1alpha1.Instance) bool { return in.Status.Ready && !in.Status.Suspended })
	k.answers(t.Context(), url, "hello from "+in.Name)
	if now, err := k.processOf(in); err != nil || now != before {
		t.Errorf("the process was %s, is %q (%v)", before, now, err)
	}
}

// canBeOnDisk checks that an instance has the same process, and an address again, after its
// memory was on the node's disk. An instance without a VMM refuses this and continues.
func canBeOnDisk(t *testing.T, k *kindCell) {
	in := k.running(serves)
	before, err := k.processOf(in)
	if err != nil {
		t.Fatal(err)
	}
	if !k.virtual() {
		out := k.c.TryRikctl("suspend", "--to-disk", in.Name)
		if out.Err == nil || !strings.Contains(out.Stderr, "only microVMs can be suspended to disk") {
			t.Errorf("suspend --to-disk says %q (%v)", out.Stderr, out.Err)
		}
	} else {
		k.c.Rikctl("suspend", "--to-disk", in.Name)
		k.the(serves, "on disk", func(in *rikv1alpha1.Instance) bool {
			return in.Status.Suspended && strings.Contains(in.Status.Message, "on the node's disk") && in.Status.Address == ""
		})
		k.c.Rikctl("resume", in.Name)
	}
	in = k.the(serves, "ready", func(in *rikv1alpha1.Instance) bool {
		return in.Status.Ready && !in.Status.Suspended && in.Status.Address != ""
	})
	k.answers(t.Context(), "http://"+net.JoinHostPort(in.Status.Address, "8080"), "hello from "+in.Name)
	if now, err := k.processOf(in); err != nil || now != before {
		t.Errorf("the process was %s, is %q (%v)", before, now, err)
	}
	if n := in.Status.Containers[0].RestartCount; n != 0 {
		t.Errorf("it was restarted %d times, the last time after %+v", n, in.Status.Containers[0].LastState)
	}
}

// isCounted checks that the node and instances are measured, that microVMs have counters, and that
// other instances have none.
func isCounted(t *testing.T, k *kindCell) {
	in := k.running(serves)
	k.c.Eventually(func() error {
		if all := k.c.Rikctl("top", "instances"); !strings.Contains(all, in.Name) {
			return fmt.Errorf("top has no %s:\n%s", in.Name, all)
		}
		if nodes := k.c.Rikctl("top", "nodes"); !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(in.Spec.NodeName) + ` +\d+m +\d+% +[1-9]\d*Mi +\d+%$`).MatchString(nodes) {
			return fmt.Errorf("top has no %s:\n%s", in.Spec.NodeName, nodes)
		}
		vms := k.c.Rikctl("top", "instances", "--vm")
		counted := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(in.Name) + ` +\d+\.\ds +\d+ +[1-9]\d*Ki `).MatchString(vms)
		if counted != k.virtual() {
			return fmt.Errorf("%s is counted: %v, in\n%s", in.Name, counted, vms)
		}
		return nil
	})
}

// life is the state of an instance before the server was killed.
type life struct {
	in      rikv1alpha1.Instance
	process string
	logged  []string
}

// killServer kills the server and its node while instances of every kind run, and starts it
// again.
func (k *kindCell) killServer(t *testing.T) {
	t.Helper()
	lives := map[string]life{}
	for i := range k.table.columns {
		cell := kindCell{&k.table.columns[i], k.table, k.c}
		in := cell.running(serves)
		process, err := cell.processOf(in)
		if err != nil {
			t.Fatal(err)
		}
		lives[cell.name] = life{in, process, cell.lines(in)}
	}
	k.c.Process("server").Kill()
	k.c.Restart("server")
	k.c.AwaitNodes(1)
	k.table.lives = lives
}

// survivesTheServer checks the processes after the server was killed. The kill happens once for
// all columns.
func survivesTheServer(t *testing.T, k *kindCell) {
	if k.table.lives == nil {
		k.killServer(t)
	}
	was := k.table.lives[k.name]
	in, logged := was.in, was.logged
	k.c.Eventually(func() error {
		now, err := k.processOf(in)
		if err == nil && now != was.process {
			t.Fatalf("the process was %s, is %s", was.process, now)
		}
		return err
	})
	k.c.Eventually(func() error {
		now := k.lines(in)
		if len(now) < len(logged)+3 {
			return fmt.Errorf("%d lines, after %d before the kill", len(now), len(logged))
		}
		if !slices.Equal(now[:len(logged)], logged) {
			return errors.New("the log from before the kill is lost")
		}
		return nil
	})
	if now := k.running(serves); now.Status.Containers[0].RestartCount != in.Status.Containers[0].RestartCount {
		t.Errorf("it was started again: %+v", now.Status.Containers)
	}
	k.answers(t.Context(), fmt.Sprintf("http://127.0.0.1:%d", k.port), "hello from "+in.Name)
}

// leavesNothing deletes the workloads of the column. With the last column it also checks the
// state of the whole machine.
func leavesNothing(t *testing.T, k *kindCell) {
	for _, what := range allOfAKind {
		k.the(what, "there", func(*rikv1alpha1.Instance) bool { return true })
		k.c.Rikctl("delete", "workload", k.workload(what))
	}
	k.c.Eventually(func() error {
		if out := k.c.Rikctl("get", "instances", "-o", "name"); strings.Contains(out, strings.ToLower(k.name)) {
			return fmt.Errorf("instances are left: %s", out)
		}
		return nil
	})
	for _, uid := range k.table.ids {
		if in, err := anInstanceOf(k, uid); err != nil || in {
			continue
		}
		k.c.Eventually(func() error { return traces(k.c, uid) })
	}
	if k.name != k.table.columns[len(k.table.columns)-1].name {
		return
	}
	k.c.Eventually(func() error {
		if left := observe(t).missing(k.table.pristine); len(left) > 0 {
			return fmt.Errorf("the machine has more than before: %q", left)
		}
		return nil
	})
}

// anInstanceOf reports whether the instance of another column still exists.
func anInstanceOf(k *kindCell, uid string) (bool, error) {
	out := k.c.TryRikctl("get", "instances", "-o", "jsonpath={.items[*].metadata.uid}")
	return strings.Contains(out.Stdout, uid), out.Err
}

// traces returns an error that lists what is left of an instance.
func traces(c *rikcluster.Cluster, uid string) error {
	var errs []error
	for pid, line := range rikcluster.Processes(uid) {
		errs = append(errs, fmt.Errorf("process %d: %s", pid, line))
	}
	for _, cgroup := range rikcluster.Cgroups(uid) {
		errs = append(errs, fmt.Errorf("cgroup %s", cgroup))
	}
	for _, point := range rikcluster.Mounts(c.Dir) {
		if strings.Contains(point, uid) {
			errs = append(errs, fmt.Errorf("mount %s", point))
		}
	}
	for _, dir := range []string{c.StateDir(), c.RunDir()} {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, _ error) error {
			if strings.Contains(filepath.Base(path), uid) {
				errs = append(errs, fmt.Errorf("file %s", path))
			}
			return nil
		})
	}
	return errors.Join(errs...)
}

// observe reads the links, addresses and firewall rules of the machine, and the processes of
// this test's microVMs.
func observe(t *testing.T) machineState {
	t.Helper()
	state := machineState{}
	checkPort := checkPorts(t)
	for _, command := range [][]string{{"ip", "-o", "link"}, {"ip", "-o", "address"}, {"ip", "route"}, {"iptables-save"}, {"ip", "neighbor"}} {
		out := rikcluster.Command(t, command[0], command[1:]...)
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		for line := range strings.Lines(out.Stdout) {
			if line = counters.ReplaceAllString(strings.TrimSpace(line), ""); line != "" && line[0] != '#' && !checkPort(line) {
				state[command[0]+" "+line] = true
			}
		}
	}
	return state
}

// checkPorts returns a function that reports whether a line is about the node's check port. Each
// riklet makes a port of its own, so the port of a riklet that was killed is another one.
func checkPorts(t *testing.T) func(line string) bool {
	t.Helper()
	out := rikcluster.Command(t, "ip", "-o", "link", "show", "type", "veth")
	if out.Err != nil {
		t.Fatal(out.Err)
	}
	names := []string{}
	for line := range strings.Lines(out.Stdout) {
		if strings.Contains(line, "alias rik0 check ") {
			name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
			names = append(names, strings.TrimSuffix(name, ":"))
		}
	}
	return func(line string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(line, name) })
	}
}

// counters matches the parts of these listings that change by themselves.
var counters = regexp.MustCompile(`\[\d+:\d+\]|^\d+: |valid_lft.*|(used|probes) \S+|(REACHABLE|STALE|DELAY|PROBE|PERMANENT|FAILED)$`)
