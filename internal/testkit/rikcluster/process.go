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

// StartProcess starts a program that belongs to no cluster, such as a kcp. It is
// stopped at the end of the test; what it said is kept in the file log.
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
	// A process group of its own, so that a signal for the tests does not reach it.
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

// PID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Alive is nil while the process runs, and says how it ended otherwise.
func (p *Process) Alive() error {
	select {
	case <-p.done:
		return fmt.Errorf("ended: %w", errors.Join(p.err, errors.New(p.cmd.ProcessState.String())))
	default:
		return nil
	}
}

// Kill ends the process at once, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

// Stop asks the process to end, and kills it when it does not.
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

// Tail is the end of what the process logged.
func (p *Process) Tail() string {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(raw), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}
