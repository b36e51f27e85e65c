// Package process runs programs for tests. A program is killed when the process that started it
// ends in any way.
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
	// tailLines is the number of log lines that are shown when a program ended.
	tailLines = 40
)

// Process is one program that runs, or has ended.
type Process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // valid once done is closed
}

// Start starts a program. Its output is appended to the file log.
func Start(program, log string, args ...string) (*Process, error) {
	return StartWith(nil, program, log, args...)
}

// StartWith does the same with additional environment variables, as NAME=VALUE.
func StartWith(env []string, program, log string, args ...string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a log: %w", err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Env = append(os.Environ(), env...)
	// Use a new process group, so that a signal for the tests does not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{name: filepath.Base(program), cmd: cmd, log: log, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Pdeathsig depends on the thread, which Go could otherwise end before the process.
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

// PID returns the process ID of the program.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill kills the program, and returns when it has ended. It may be called again.
func (p *Process) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // fails if it has ended already
	<-p.done
}

// Stop sends SIGTERM, and returns when the program has ended. It returns an error unless the
// program exits successfully and in time. It may be called again.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended already
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

// Ended returns an error that describes how the program ended. It may be called only after Done.
func (p *Process) Ended() error {
	return fmt.Errorf("%s ended: %w", p.name, errors.Join(p.err, errors.New(p.cmd.ProcessState.String())))
}

// Log returns all output of the program so far.
func (p *Process) Log() string {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// Tail returns the end of the program's output.
func (p *Process) Tail() string {
	lines := strings.Split(p.Log(), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// awaitPause is short compared to the start of any program.
const awaitPause = 10 * time.Millisecond

// AwaitLine waits until the program prints a line that contains mark, and returns that line.
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

// lineWith returns the first complete line that contains mark.
func lineWith(text, mark string) (string, bool) {
	for line := range strings.Lines(text) {
		if strings.HasSuffix(line, "\n") && strings.Contains(line, mark) {
			return strings.TrimSuffix(line, "\n"), true
		}
	}
	return "", false
}
