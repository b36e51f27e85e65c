package runner

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// TestPrivilegedInterruptLeavesNothing interrupts tests that have a Pod, as Ctrl-C does. Once the
// Pod remained, with its supervisor, mounts and cgroups.
func TestPrivilegedInterruptLeavesNothing(t *testing.T) {
	const dir, running = "RIK_TEST_POD_INTERRUPTED", "the Pod runs"
	n := newNode(t).bare()
	if given := os.Getenv(dir); given != "" {
		if err := os.RemoveAll(n.dir); err != nil {
			t.Fatal(err)
		}
		n.dir, n.cfg = given, settings(given, n.objects)
		n.start()
		n.ensure(podOf("u1", rikv1alpha1.RestartAlways, sh("main", forever)))
		n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
		t.Log(running)
		eventually(t, func() string { return "waiting to be stopped" })
		return
	}
	t.Parallel()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), dir+"="+n.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	stopped := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if strings.HasSuffix(lines.Text(), running) {
			if len(traces(n.dir, n.cfg.CgroupParent)) == 0 {
				t.Error("nothing is seen of a Pod that runs")
			}
			// Signal the whole process group, as a terminal does.
			if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
				t.Error(err)
			}
			stopped = true
		}
	}
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); !stopped || code != 1 {
		t.Errorf("stopped: %t, ended with %v, want a test's failure; its output:\n%s", stopped, err, strings.Join(said, "\n"))
	}
	if left := traces(n.dir, n.cfg.CgroupParent); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
