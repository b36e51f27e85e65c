package rikcluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stopTimeout is how long a process may take to end on SIGTERM.
const stopTimeout = time.Minute

// Process is one running component.
type Process struct {
	Name string

	cmd  *exec.Cmd
	log  string
	done chan struct{}
	once sync.Once
	err  error
}

// StartProcess starts a program without a cluster, such as a kcp. The end of the test stops it.
// Its output is in the file log.
func StartProcess(tb testing.TB, name, log, program string, args ...string) *Process {
	tb.Helper()
	p := startProcess(tb, name, log, program, args...)
	tb.Cleanup(func() {
		p.Stop()
		if tb.Failed() {
			tb.Logf("the log of %s ended with:\n%s", name, p.Tail())
		}
	})
	return p
}

func startProcess(tb testing.TB, name, log, program string, args ...string) *Process {
	tb.Helper()
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = file, file
	// Use a new process group, so that a signal for the tests does not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		tb.Fatalf("starting %s: %v", name, err)
	}
	p := &Process{Name: name, cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Alive returns nil while the process runs, and an error that describes its end otherwise.
func (p *Process) Alive() error {
	select {
	case <-p.done:
		return fmt.Errorf("ended: %w", errors.Join(p.err, errors.New(p.cmd.ProcessState.String())))
	default:
		return nil
	}
}

// Kill kills the process, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

// Stop sends SIGTERM, and kills the process if it does not end in time.
func (p *Process) Stop() {
	p.once.Do(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(stopTimeout):
			p.Kill()
		}
	})
}

// Wait waits for the end of the process and returns its exit code.
func (p *Process) Wait() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Tail returns the end of the process's log.
func (p *Process) Tail() string {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(raw), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}
