// Package process runs programs for tests. A program ends with the process that
// started it, however that ends.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// gracePeriod is how long a program may take to end on SIGTERM.
	gracePeriod = time.Minute
	// tailLines of a log are enough to see why a program ended.
	tailLines = 40
)

// Process is one program that runs, or has ended.
type Process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // once done
}

// Start starts a program. What it says is appended to the file log.
func Start(program, log string, args ...string) (*Process, error) {
	return StartWith(nil, program, log, args...)
}

// StartWith does the same with variables, as NAME=VALUE, on top of this environment.
func StartWith(env []string, program, log string, args ...string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a log: %w", err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Env = append(os.Environ(), env...)
	// A process group of its own, so that a signal for the tests does not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{name: filepath.Base(program), cmd: cmd, log: log, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Pdeathsig is about the thread, which Go may otherwise end before the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := errors.Join(cmd.Start(), file.Close())
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.name, err)
	}
	return p, nil
}

// PID is that of the program.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the program at once, and returns when it has ended. It may be called again.
func (p *Process) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // fails when it has ended already
	<-p.done
}

// Stop asks the program to end, and returns when it has: with an error unless it ended
// well and in time. It may be called again.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails when it has ended already
	timer := time.NewTimer(gracePeriod)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM\n%s", p.name, gracePeriod, p.Tail())
	}
	if p.err != nil {
		return fmt.Errorf("%w\n%s", p.Ended(), p.Tail())
	}
	return nil
}

// Ended says how; only once Done.
func (p *Process) Ended() error {
	return fmt.Errorf("%s ended: %w", p.name, errors.Join(p.err, errors.New(p.cmd.ProcessState.String())))
}

// Log is all that the program said so far.
func (p *Process) Log() string {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// Tail is the end of what the program said.
func (p *Process) Tail() string {
	lines := strings.Split(p.Log(), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// awaitPause is short beside a start of any program that is waited for.
const awaitPause = 10 * time.Millisecond

// AwaitLine waits until the program says a line with the mark in it, and returns that
// line.
func (p *Process) AwaitLine(mark string, timeout time.Duration) (string, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		if line, ok := lineWith(p.Log(), mark); ok {
			return line, nil
		}
		select {
		case <-p.done:
			return "", fmt.Errorf("waiting until %s says %q: %w\n%s", p.name, mark, p.Ended(), p.Tail())
		case <-timer.C:
			return "", fmt.Errorf("waiting until %s says %q: it has not for %s\n%s", p.name, mark, timeout, p.Tail())
		case <-time.After(awaitPause):
		}
	}
}

// lineWith finds the first whole line that has the mark.
func lineWith(text, mark string) (string, bool) {
	for line := range strings.Lines(text) {
		if strings.HasSuffix(line, "\n") && strings.Contains(line, mark) {
			return strings.TrimSuffix(line, "\n"), true
		}
	}
	return "", false
}
