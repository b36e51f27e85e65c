package vmmtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/vmm"
)

// connectTooEarly checks that Connect waits for a VMM, and fails when its context ends.
func (s *suite) connectTooEarly(t *testing.T) {
	m := s.machine(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Driver.Connect(ctx, m)
	wantGone(t, "Connect() to a machine that was not prepared", err)
	// The same if the context ends during the state request.
	over, end := context.WithCancel(t.Context())
	end()
	_, err = s.Driver.Connect(over, m)
	wantGone(t, "Connect() to it without any time", err)

	p, err := s.Driver.Prepare(s.context(t), m)
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	waiting := make(chan struct{})
	g.Go(func() error {
		close(waiting)
		v, err := s.Driver.Connect(s.context(t), m)
		if err != nil {
			return err
		}
		return v.Close()
	})
	<-waiting
	start(t, p)
	if err := g.Wait(); err != nil {
		t.Errorf("Connect() before the process was there = %v, want it to wait", err)
	}
}

// lifecycle tests one machine from its start to its end.
func (s *suite) lifecycle(t *testing.T) {
	m := s.machine(t)
	run, v := s.up(t, m, func(v vmm.VM) {
		ctx := s.context(t)
		wantState(ctx, t, v, vmm.StateNotStarted)
		if err := v.Pause(ctx); err == nil {
			t.Error("Pause() before Start() = nil, want an error")
		}
		isIdempotent(ctx, t, "Start()", v.Start)
		wantState(ctx, t, v, vmm.StateRunning)
	})
	ctx := s.context(t)
	isIdempotent(ctx, t, "Pause()", v.Pause)
	wantState(ctx, t, v, vmm.StatePaused)
	if err := v.Start(ctx); err != nil {
		t.Errorf("Start() of a paused VM = %v, want nil", err)
	}
	wantState(ctx, t, v, vmm.StatePaused)
	isIdempotent(ctx, t, "Resume()", v.Resume)
	wantState(ctx, t, v, vmm.StateRunning)
	s.greet(ctx, t, m)
	s.measure(ctx, t, v, m)
	if err := v.Shutdown(ctx); err != nil && !errors.Is(err, vmm.ErrUnsupported) {
		t.Errorf("Shutdown() = %v, want nil or ErrUnsupported", err)
	}
	if err := v.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	run.kill()
}

// measure checks the metrics of a machine that has run.
func (s *suite) measure(ctx context.Context, t *testing.T, v vmm.VM, m vmm.Machine) {
	t.Helper()
	first, err := v.Metrics(ctx)
	if err != nil {
		t.Fatalf("Metrics() = %v", err)
	}
	second, err := v.Metrics(ctx)
	if err != nil {
		t.Fatalf("Metrics() again = %v", err)
	}
	if second.DiskReadBytes < first.DiskReadBytes || second.Exits < first.Exits {
		t.Errorf("Metrics() went from %+v to %+v: counters never fall", first, second)
	}
	if first.MemoryBytes > uint64(m.MemoryBytes) {
		t.Errorf("Metrics() gives %d bytes of memory, more than the machine's %d", first.MemoryBytes, m.MemoryBytes)
	}
	if s.found.Guest && (first.MemoryBytes == 0 || first.DiskReadBytes == 0) {
		t.Errorf("Metrics() = %+v: a guest that booted has memory and has read its disks", first)
	}
}

// snapshot saves a machine, and restores it in another process.
func (s *suite) snapshot(t *testing.T) {
	m := s.machine(t)
	run, v := s.up(t, m, nil)
	ctx := s.context(t)
	dir := filepath.Join(filepath.Dir(m.Dir), "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := v.Snapshot(ctx, dir); err == nil {
		t.Error("Snapshot() of a running VM = nil, want an error")
	}
	if err := v.Pause(ctx); err != nil {
		t.Fatalf("Pause() = %v", err)
	}
	err := v.Snapshot(ctx, dir)
	if !s.found.Snapshot {
		if !errors.Is(err, vmm.ErrUnsupported) {
			t.Errorf("Snapshot() = %v, want ErrUnsupported as Probe said", err)
		}
		return
	}
	if err != nil {
		t.Fatalf("Snapshot() = %v", err)
	}
	wantState(ctx, t, v, vmm.StatePaused)
	if err := v.Snapshot(ctx, dir); err == nil {
		t.Error("Snapshot() into a directory that is not empty = nil, want an error")
	}
	if err := v.Resume(ctx); err != nil {
		t.Errorf("Resume() after Snapshot() = %v", err)
	}
	s.greet(ctx, t, m)
	run.kill()
	s.restore(ctx, t, m, dir)
}

func (s *suite) restore(ctx context.Context, t *testing.T, m vmm.Machine, dir string) {
	t.Helper()
	if err := s.Driver.Cleanup(ctx, m); err != nil {
		t.Fatal(err)
	}
	m.Restore = dir
	other := m
	other.MemoryBytes *= 2
	if err := s.Driver.Validate(other); !errors.Is(err, vmm.ErrInvalid) {
		t.Errorf("Validate() of a restore with more memory = %v, want ErrInvalid", err)
	}
	run := s.boot(t, m)
	v := s.connect(ctx, t, m)
	wantState(ctx, t, v, vmm.StateNotStarted)
	isIdempotent(ctx, t, "Start() of a restored VM", v.Start)
	wantState(ctx, t, v, vmm.StateRunning)
	s.greet(ctx, t, m)
	isIdempotent(ctx, t, "Pause() of a restored VM", v.Pause)
	wantState(ctx, t, v, vmm.StatePaused)
	run.kill()
}

// connections checks that several agents can connect one after the other and at the same time.
func (s *suite) connections(t *testing.T) {
	ctx, m := s.context(t), s.machine(t)
	s.boot(t, m)
	first, second := s.connect(ctx, t, m), s.connect(ctx, t, m)
	if err := first.Start(ctx); err != nil {
		t.Fatal(err)
	}
	wantState(ctx, t, second, vmm.StateRunning)
	before := descriptors(t)
	var g errgroup.Group
	for i := range 12 {
		v := []vmm.VM{first, second}[i%2]
		g.Go(func() error {
			_, err := v.State(ctx)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Errorf("State() of many at once = %v", err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	wantState(ctx, t, second, vmm.StateRunning)
	for range 20 {
		v := s.connect(ctx, t, m)
		wantState(ctx, t, v, vmm.StateRunning)
		if err := v.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	}
	if after := descriptors(t); after > before {
		t.Errorf("20 connections left %d open files more than there were", after-before)
	}
}

// descriptors returns the number of the test's open files.
func descriptors(t *testing.T) int { return len(entries(t, "/proc/self/fd")) }

// killed checks that no call hangs when the VMM dies.
func (s *suite) killed(t *testing.T) {
	ctx, m := s.context(t), s.machine(t)
	run := s.boot(t, m)
	v := s.connect(ctx, t, m)
	if err := v.Start(ctx); err != nil {
		t.Fatal(err)
	}
	run.kill()
	_, err := v.State(ctx)
	wantGone(t, "State()", err)
	_, err = v.Metrics(ctx)
	wantGone(t, "Metrics()", err)
	for what, do := range map[string]func(context.Context) error{
		"Start()": v.Start, "Pause()": v.Pause, "Resume()": v.Resume, "Shutdown()": v.Shutdown,
		"Snapshot()": func(ctx context.Context) error { return v.Snapshot(ctx, t.TempDir()) },
	} {
		if err := do(ctx); !errors.Is(err, vmm.ErrUnsupported) {
			wantGone(t, what, err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = s.Driver.Connect(short, m)
	wantGone(t, "Connect()", err)
	if err := v.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

func (s *suite) connect(ctx context.Context, t *testing.T, m vmm.Machine) vmm.VM {
	t.Helper()
	v, err := s.Driver.Connect(ctx, m)
	if err != nil {
		t.Fatalf("Connect() = %v", err)
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}

// maxBoots is the maximum number of boots of a machine whose kernel measures its timer
// wrongly.
const maxBoots = 5

// up boots a machine and calls look, if set, which may start it. It then starts the VM, and
// waits until its guest answers.
func (s *suite) up(t *testing.T, m vmm.Machine, look func(vmm.VM)) (*process, vmm.VM) {
	t.Helper()
	for boots := 1; ; boots++ {
		ctx := s.context(t)
		run := s.boot(t, m)
		v := s.connect(ctx, t, m)
		if look != nil {
			look(v)
		}
		if err := v.Start(ctx); err != nil {
			t.Fatalf("Start() = %v", err)
		}
		err := s.answer(ctx, m)
		if err == nil {
			return run, v
		}
		select { // then the output is complete
		case <-run.ended:
		case <-time.After(time.Second):
		}
		if boots == maxBoots || !strings.Contains(run.output.String(), guest.PausedMessage) {
			t.Fatalf("the guest does not answer: %v", err)
		}
		run.kill()
		if err := errors.Join(v.Close(), s.Driver.Cleanup(ctx, m)); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *suite) greet(ctx context.Context, t *testing.T, m vmm.Machine) {
	t.Helper()
	if err := s.answer(ctx, m); err != nil {
		t.Fatalf("the guest does not answer: %v", err)
	}
}

// answer calls Greet, if the driver boots a guest.
func (s *suite) answer(ctx context.Context, m vmm.Machine) error {
	if s.Greet == nil {
		return nil
	}
	return s.Greet(ctx, s.Driver.Channel(m))
}

func isIdempotent(ctx context.Context, t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	for i := range 2 {
		if err := do(ctx); err != nil {
			t.Fatalf("%s, call %d = %v, want nil", what, i+1, err)
		}
	}
}
