package rikctl

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/config"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/screen"
)

// doOn runs a command line with a terminal, until the caller calls stop or the command ends. stop
// returns the exit code.
func (s site) doOn(t *testing.T, terminal *os.File, line ...string) (stop func(interrupt bool) int) {
	t.Helper()
	source := config.Source{Home: s.home, ReadFile: os.ReadFile, Getenv: func(k string) string { return s.env[k] }}
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: terminal, ErrOut: terminal}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var code int
	group.Go(func() { code = Execute(ctx, append([]string{"-n", s.namespace}, line...), streams, source) })
	t.Cleanup(func() { cancel(); group.Wait() })
	return func(interrupt bool) int {
		if interrupt {
			cancel()
		}
		group.Wait()
		cancel()
		return code
	}
}

// drainable creates a node with one instance, and another node.
func (s site) drainable(t *testing.T) (node, other string) {
	t.Helper()
	node, other = s.node(t), s.node(t)
	s.workload(t, "web", "  deploy: Automatic\n  replicas: 1\n")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-1").check(t, clierror.ExitOK)
	s.runningOn(t, "web-1", node)
	return node, other
}

func TestServerDrainOnATerminal(t *testing.T) {
	s, terminal := newSite(t), screen.New(t)
	node, other := s.drainable(t)
	stop := s.doOn(t, terminal.TTY, "drain", node)
	terminal.Await(t, "0 of 1 instances moved, waiting for")
	terminal.Await(t, "instance "+s.namespace+"/web-1: Terminating")
	s.confirmEnd(t, "web-1")
	terminal.Await(t, "1 of 1 instances moved, waiting for")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-2").check(t, clierror.ExitOK)
	s.runningOn(t, "web-2", other)
	if code := stop(false); code != clierror.ExitOK {
		t.Errorf("drain ended with %d", code)
	}
	terminal.Await(t, "node/"+node+" drained")
	want := fmt.Sprintf("node/%s cordoned|instance/web-1 in namespace %s deleted|node/%s drained|", node, s.namespace, node)
	if got := strings.Join(terminal.Shown(), "|"); got != want {
		t.Errorf("after the drain the terminal shows\n%s\nwant\n%s\nit got %q", got, want, terminal.Raw())
	}
}

func TestServerDrainInLines(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node, _ := s.drainable(t)
	s.drainsNot(t, node, "0 of 1 instances moved, waiting for", "instance/web-1 in namespace "+s.namespace+" deleted")
	if r := s.do(t, "drain", node, "--timeout=1s"); strings.ContainsAny(r.out+r.err, "\x1b\r") {
		t.Errorf("outside a terminal, drain printed control characters: %q", r.out+r.err)
	}
}

func TestServerInterruptedRolloutLeavesACleanTerminal(t *testing.T) {
	s, terminal := newSite(t), screen.New(t)
	s.workload(t, "web", "  deploy: Automatic\n  replicas: 2\n")
	w := &rikv1alpha1.Workload{}
	if err := s.c.Get(t.Context(), s.key("web"), w); err != nil {
		t.Fatal(err)
	}
	w.Status = rikv1alpha1.WorkloadStatus{ObservedGeneration: w.Generation, Replicas: 1, UpdatedReplicas: 1}
	if err := s.c.Status().Update(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	stop := s.doOn(t, terminal.TTY, "rollout", "status", "web")
	terminal.Await(t, "1 of 2 instances are of the new revision")
	stop(true)
	fmt.Fprintln(terminal.TTY, "$")
	terminal.Await(t, "$")
	if got := strings.Join(terminal.Shown(), "|"); strings.Contains(got, "instances are") {
		t.Errorf("after an interrupt the terminal still shows %q; it got %q", got, terminal.Raw())
	}
	w.Status = rikv1alpha1.WorkloadStatus{ObservedGeneration: w.Generation, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2}
	if err := s.c.Status().Update(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	s.do(t, "rollout", "status", "web").check(t, clierror.ExitOK, "workload web is rolled out: 2 of 2 instances are ready")
}

// TestServerRolloutShowsTheConversionOfAnImage: the user who waits for a microVM sees how far the disk
// is that its node creates from an image.
func TestServerRolloutShowsTheConversionOfAnImage(t *testing.T) {
	s, terminal := newSite(t), screen.New(t)
	s.workload(t, "web", "  deploy: Automatic\n  replicas: 1\n  isolation: microvm\n")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-1").check(t, clierror.ExitOK)
	i := &rikv1alpha1.Instance{}
	if err := s.c.Get(t.Context(), s.key("web-1"), i); err != nil {
		t.Fatal(err)
	}
	// This is what a node reports; see TestBuildReportsProgress of internal/riklet/disk.
	const conversion = "creating the disk image of docker://registry.example/web:1: 12.0 MiB of 100.0 MiB"
	i.Status.Phase, i.Status.Reason, i.Status.Message = rikv1alpha1.InstanceCreating, "Pulling", conversion
	if err := s.c.Status().Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	w := &rikv1alpha1.Workload{}
	if err := s.c.Get(t.Context(), s.key("web"), w); err != nil {
		t.Fatal(err)
	}
	w.Status = rikv1alpha1.WorkloadStatus{ObservedGeneration: w.Generation, Replicas: 1, UpdatedReplicas: 1}
	if err := s.c.Status().Update(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	stop := s.doOn(t, terminal.TTY, "rollout", "status", "web")
	terminal.Await(t, "12.0 MiB of 100.0")
	stop(true)
	fmt.Fprintln(terminal.TTY, "$")
	terminal.Await(t, "$")
	if got := strings.Join(terminal.Shown(), "|"); got != "$|" {
		t.Errorf("after an interrupt the terminal still shows %q; it got %q", got, terminal.Raw())
	}
	r := s.do(t, "rollout", "status", "web", "--timeout=1s", "-o", "json")
	r.check(t, clierror.ExitUnreachable)
	if !strings.Contains(r.out, conversion) {
		t.Errorf("the document has no %q:\n%s", conversion, r.out)
	}
	s.do(t, "describe", "instance", "web-1").check(t, clierror.ExitOK, conversion)
}

func TestServerDeleteSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.workload(t, "web", "")
	w := &rikv1alpha1.Workload{}
	if err := s.c.Get(t.Context(), s.key("web"), w); err != nil {
		t.Fatal(err)
	}
	w.Finalizers = append(w.Finalizers, "example.org/held")
	if err := s.c.Update(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	// The name of the finalizer on the standard error, and nothing more on the standard output.
	poll.Until(t, time.Minute, "delete says what it waits for", func(context.Context) error {
		r := s.do(t, "delete", "workload", "web", "--timeout=2s")
		if !strings.Contains(r.err, "web: Terminating (finalizers: ") || !strings.Contains(r.err, "example.org/held") || strings.Contains(r.out, "Terminating") {
			return fmt.Errorf("out: %s, err: %s", r.out, r.err)
		}
		return nil
	})
	if r := s.do(t, "delete", "workload", "web", "--timeout=2s", "-o", "name"); r.out != "workload.rik.dev/web\n" {
		t.Errorf("with -o name, delete printed %s", r.out)
	}
	r := s.do(t, "wait", "workload/web", "--for=condition=Available", "--timeout=2s")
	if !strings.Contains(r.err, "waiting for workload web: condition=Available") {
		t.Errorf("wait printed %q, want what it waits for", r.err)
	}
	r = s.do(t, "wait", "workload/web", "--for=condition=Available", "--timeout=2s", "-o", "json")
	if !strings.Contains(r.err, "waiting for workload web: condition") || r.out != "" {
		t.Errorf("with -o json, wait printed %q and %q, want what it waits for on the standard error", r.out, r.err)
	}
}
