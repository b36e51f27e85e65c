package vmmfake

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/vmmtest"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// TestFake runs the suite. As root, each fake runs as a different user; otherwise as the caller.
func TestFake(t *testing.T) {
	kernel := kernel(t)
	vmmtest.Run(t, vmmtest.Config{
		Driver: Driver{}, Kernel: kernel, Initramfs: kernel,
		ControlSocket: func(m vmm.Machine) string { return filepath.Join(directory(m), controlSocket) },
		Greet: func(ctx context.Context, c guest.Channel) error {
			return with(ctx, c, func(g guest.Guest) error { return g.Health(ctx) })
		},
	})
}

func kernel(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(path, []byte("of no guest"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func with(ctx context.Context, c guest.Channel, f func(guest.Guest) error) error {
	session, err := guest.Connect(ctx, c)
	if err != nil {
		return err
	}
	defer session.Close()
	return f(guest.New(session.Open))
}

// TestProcessesOfTheGuest runs commands, and stops them with a pause.
func TestProcessesOfTheGuest(t *testing.T) {
	m := vmmtest.Machine(t)
	m.Kernel = kernel(t)
	v := vmmtest.Start(t, Driver{}, m)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := v.Start(ctx); err != nil {
		t.Fatal(err)
	}
	err := with(ctx, Driver{}.Channel(m), func(g guest.Guest) error {
		if _, err := g.Run(ctx, guest.Process{Argv: []string{"/missing"}}, guest.Streams{}); !errors.Is(err, guest.ErrNoProgram) {
			t.Errorf("Run() of a missing program = %v, want ErrNoProgram", err)
		}
		var out bytes.Buffer
		r, err := g.Run(ctx, guest.Process{Argv: []string{"/bin/sh", "-c", "cat; exit 3"}, Env: []string{"PATH=/bin"}}, guest.Streams{Stdin: strings.NewReader("hello"), Stdout: &out})
		if err != nil {
			return err
		}
		if e, err := r.Wait(); err != nil || e.Code != 3 || out.String() != "hello" {
			t.Errorf("Wait() = %+v, %v after %q, want code 3 after %q", e, err, out.String(), "hello")
		}
		return hold(ctx, t, v, g)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// hold pauses the machine and checks its process.
func hold(ctx context.Context, t *testing.T, v vmm.VM, g guest.Guest) error {
	t.Helper()
	r, err := g.Run(ctx, guest.Process{Argv: []string{"/bin/sleep", "1000"}}, guest.Streams{})
	if err != nil {
		return err
	}
	for _, step := range []struct {
		do   func(context.Context) error
		want string
	}{{v.Pause, "T"}, {v.Resume, "S"}} {
		if err := step.do(ctx); err != nil {
			return err
		}
		awaitState(ctx, t, r.PID(), step.want)
	}
	if err := r.Signal(ctx, int(syscall.SIGKILL)); err != nil {
		return err
	}
	if e, err := r.Wait(); err != nil || e.Code != 137 {
		t.Errorf("Wait() of the killed = %+v, %v, want code 137", e, err)
	}
	return nil
}

// awaitState waits until the kernel reports a process as stopped, or sleeping.
func awaitState(ctx context.Context, t *testing.T, pid int, want string) {
	t.Helper()
	last := ""
	for ctx.Err() == nil {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if last = fields[0]; last == want {
			return
		}
		time.Sleep(poll) // the kernel sends no notification
	}
	t.Fatalf("process %d is in the state %s, want %s", pid, last, want)
}
