package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

func everySecond(p rikv1alpha1.Probe) *rikv1alpha1.Probe {
	p.PeriodSeconds, p.TimeoutSeconds, p.FailureThreshold = 1, 30, 2
	return &p
}

// A command ends when its process ends, even if a background process holds its output open. The
// output written before is delivered. The same holds for an exec probe.
func TestPrivilegedCommandsDoNotWaitForBackgroundProcesses(t *testing.T) {
	t.Parallel()
	const leaves = "sleep 100000 & head -c 60000 /dev/zero | tr '\\0' x; echo end"
	for name, tc := range map[string]struct {
		newNode func(*testing.T) *node
		make    func(uid string, policy rikv1alpha1.RestartPolicy, containers ...rikv1alpha1.Container) instance.Instance
	}{
		"a container": {func(t *testing.T) *node { return newNode(t) }, podOf},
		"a microVM":   {newVMNode, microVM},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := tc.newNode(t)
			n.start()
			probe := everySecond(rikv1alpha1.Probe{Exec: &rikv1alpha1.ExecProbe{Command: []string{"/bin/sh", "-c", "sleep 100000 & echo x"}}})
			probe.TimeoutSeconds = 60 // it does not wait for the process
			in := tc.make("u1", rikv1alpha1.RestartAlways, sh("main", forever))
			in.Template.Containers[0].ReadinessProbe = probe
			n.ensure(in)
			n.await("u1", "ready", func(s rikv1alpha1.InstanceStatus) bool { return s.Ready })
			for _, tty := range []bool{false, true} {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				var out bytes.Buffer
				code, err := n.driver.Exec(ctx, "u1", "main", instance.ExecOptions{Command: []string{"/bin/sh", "-c", leaves + "; exit 3"}, TTY: tty, Stdout: &out})
				cancel()
				if err != nil || code != 3 || out.Len() < 60000 || !bytes.HasSuffix(bytes.TrimSpace(out.Bytes()), []byte("xend")) {
					t.Errorf("with a terminal %v: Exec() = %d, %v, and %d bytes of output", tty, code, err, out.Len())
				}
			}
			n.stop("u1", time.Second)
		})
	}
}

// failingRuntime creates a runtime that behaves like runc until the file flag exists. Then exec
// fails like a runc that cannot write its log.
func (n *node) failingRuntime() (path, flag string) {
	n.Helper()
	flag = filepath.Join(n.dir, "runtime-fails")
	path = filepath.Join(n.dir, "failing-runc")
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' exec '*) [ -e %[1]s ] && echo failed >> %[1]s && exit 255;; esac\nexec %[2]s \"$@\"\n", flag, n.cfg.Runc)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		n.Fatal(err)
	}
	return path, flag
}

// A failure of the runtime must not look like a failure of the command: neither as exit code 255
// nor as a failed probe.
func TestPrivilegedRuntimeErrorIsNoFailedProbe(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	path, flag := n.failingRuntime()
	n.cfg.Runtimes = map[string]string{"failing": path}
	d := n.start()
	c := sh("main", forever)
	c.LivenessProbe = everySecond(rikv1alpha1.Probe{Exec: &rikv1alpha1.ExecProbe{Command: []string{"true"}}})
	c.LivenessProbe.FailureThreshold = 1
	in := podOf("u1", rikv1alpha1.RestartAlways, c)
	in.Template.Runtime = "failing"
	n.ensure(in)
	n.await("u1", "ready", func(s rikv1alpha1.InstanceStatus) bool { return s.Ready })
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, err := d.Exec(t.Context(), "u1", "main", instance.ExecOptions{Command: []string{"true"}}); err == nil {
		t.Errorf("Exec() = %d without an error, although nothing ran", code)
	}
	eventually(t, func() string { // one is the test's, the others are probes
		if text, err := readFile(flag); err != nil || strings.Count(text, "failed") < 4 {
			return "the runtime failed: " + text
		}
		return ""
	})
	if s := n.status("u1"); s.Containers[0].RestartCount != 0 || !s.Ready {
		t.Errorf("the container was blamed for its node: %+v", s)
	}
	if err := os.Remove(flag); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]int{"exit 255": 255, "exit 7": 7} {
		if code, err := d.Exec(t.Context(), "u1", "main", instance.ExecOptions{Command: []string{"/bin/sh", "-c", command}}); code != want || err != nil {
			t.Errorf("Exec(%q) = %d, %v, want %d", command, code, err, want)
		}
	}
	for program, want := range map[string]int{"no-such-program": 127, "/no/such/program": 127, "/etc": 126} {
		code, err := d.Exec(t.Context(), "u1", "main", instance.ExecOptions{Command: []string{program}})
		if code != want || err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Exec(%q) = %d, %v, want %d", program, code, err, want)
		}
	}
	n.stop("u1", time.Second)
}
