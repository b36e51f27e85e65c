package vmmfake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/guestinit"
)

// host is the guestinit.Machine of the fake. Its processes run on this machine, as its user.
type host struct{}

var _ guestinit.Machine = host{}

func (host) Configure(guest.Config) error { return nil }
func (host) Files(guest.Volume) error     { return nil }
func (host) Thaw(guest.Identity) error    { return nil }

func (host) Usage() (guest.Usage, error) { return guest.Usage{}, nil }

func (host) Dial(ctx context.Context, port int32) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
}

// Start runs a process with pipes. It does not support terminals.
func (host) Start(p guest.Process, stdin bool) (*guestinit.Child, error) {
	if len(p.Argv) == 0 || p.TTY {
		return nil, fmt.Errorf("%w: the fake VMM runs commands without a terminal", guest.ErrNotRunnable)
	}
	cmd := exec.Command(p.Argv[0], p.Argv[1:]...)
	cmd.Env, cmd.Dir = p.Env, p.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c := &guestinit.Child{}
	theirs, err := pipes(cmd, c, stdin)
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
	}()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		closeParentEnds(c)
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%w: %w", guest.ErrNoProgram, err)
		}
		return nil, fmt.Errorf("%w: %w", guest.ErrNotRunnable, err)
	}
	c.PID = cmd.Process.Pid
	c.Signal = func(n int) error {
		if err := syscall.Kill(c.PID, syscall.Signal(n)); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return nil
	}
	c.Kill = func() { _ = syscall.Kill(-c.PID, syscall.SIGKILL) }
	c.Wait = func() guest.Exit { return exitOf(cmd) }
	return c, nil
}

// pipes connects a command and a child. It returns the command's ends.
func pipes(cmd *exec.Cmd, c *guestinit.Child, stdin bool) ([]*os.File, error) {
	var theirs []*os.File
	for _, ours := range []struct {
		to   **os.File
		give func(*os.File)
	}{
		{&c.Stdout, func(f *os.File) { cmd.Stdout = f }},
		{&c.Stderr, func(f *os.File) { cmd.Stderr = f }},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			return theirs, err
		}
		*ours.to, theirs = r, append(theirs, w)
		ours.give(w)
	}
	if stdin {
		r, w, err := os.Pipe()
		if err != nil {
			return theirs, err
		}
		c.Stdin, cmd.Stdin, theirs = w, r, append(theirs, r)
	}
	return theirs, nil
}

func closeParentEnds(c *guestinit.Child) {
	for _, f := range []*os.File{c.Stdout, c.Stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
	if c.Stdin != nil {
		_ = c.Stdin.Close()
	}
}

func exitOf(cmd *exec.Cmd) guest.Exit {
	_ = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return guest.Exit{Code: 128 + int(status.Signal())}
	}
	return guest.Exit{Code: cmd.ProcessState.ExitCode()}
}

// Stop kills all processes of the guest.
func (host) Stop() error { return signalDescendants(syscall.SIGKILL) }

// PowerOff ends the fake.
func (host) PowerOff() {
	_ = signalDescendants(syscall.SIGKILL)
	os.Exit(0)
}

// signalDescendants signals all descendants of this process, parents first, so that it also
// reaches children created in the meantime by a process that it had not signaled yet.
func signalDescendants(s syscall.Signal) error {
	done := map[int]bool{}
	for {
		children, err := descendants(os.Getpid())
		if err != nil {
			return err
		}
		again := false
		for _, pid := range children {
			if done[pid] {
				continue
			}
			done[pid], again = true, true
			if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("signaling process %d of the guest: %w", pid, err)
			}
		}
		if !again {
			return nil
		}
	}
}

func descendants(of int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		// The name in brackets may contain anything. The parent is the second field after it.
		fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if err != nil || len(fields) < 2 {
			continue // it has ended in the meantime
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(string(fields[1]))
		children[parent] = append(children[parent], pid)
	}
	var all []int
	for next := []int{of}; len(next) > 0; next = next[1:] {
		all = append(all, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return all, nil
}
