// Package command runs commands next to the processes of instances: it connects a command to the
// streams or the terminal of a session, and waits for its end. It does not know what the command
// is, or whom it belongs to. Engines start the command.
package command

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/instance"
)

// Stuck is how long to wait for a command after it was killed.
const Stuck = 2 * time.Second

// Execution is one command in a container. All fields are required.
type Execution struct {
	// Cmd is a process on the node: the command itself or a proxy for it.
	Cmd     *exec.Cmd
	Options instance.ExecOptions
	// Start starts Cmd.
	Start func() error
	// Refused is called after Cmd failed. It reports whether the command was not run at all, and
	// returns the exit code or error for that case.
	Refused func() (code int, err error, refused bool)
}

// Run runs the command to its end and returns its exit code. The caller ends the command when ctx
// ends. Run may return while a read from Stdin still blocks.
func (e *Execution) Run(ctx context.Context) (int, error) {
	if e.Options.TTY {
		return e.runTTY(ctx)
	}
	return e.run(ctx)
}

// RunOrAbandon is Run for a command that is a process of the instance. It also returns when ctx
// ends: a process of a suspended instance does not die of a signal until the instance resumes.
func (e *Execution) RunOrAbandon(ctx context.Context) (int, error) {
	type result struct {
		code int
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		code, err := e.Run(ctx)
		ended <- result{code, err}
	}()
	select {
	case r := <-ended:
		return r.code, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-ended:
		return r.code, r.err
	case <-time.After(2 * Stuck):
		return 0, context.Cause(ctx)
	}
}

func (e *Execution) run(ctx context.Context) (int, error) {
	var out outputs
	if err := e.connect(&out); err != nil {
		out.started()
		return 0, err
	}
	var stdin io.WriteCloser
	if e.Options.Stdin != nil {
		var err error
		if stdin, err = e.Cmd.StdinPipe(); err != nil {
			out.started()
			return 0, err
		}
	}
	err := e.Start()
	out.started()
	if err != nil {
		out.ended(ctx)
		return 0, err
	}
	if stdin != nil {
		go func() {
			_, _ = io.Copy(stdin, e.Options.Stdin)
			_ = stdin.Close()
		}()
	}
	err = e.Cmd.Wait()
	out.ended(ctx)
	return e.result(ctx, err)
}

// connect connects the command's output to the sinks. If both outputs have the same sink, they
// share one pipe, so that there is only one writer.
func (e *Execution) connect(out *outputs) error {
	w, err := out.pipe(e.Options.Stdout)
	if err != nil {
		return err
	}
	if w != nil {
		e.Cmd.Stdout = w
	}
	if e.Options.Stderr == nil {
		return nil
	}
	if reflect.TypeOf(e.Options.Stderr).Comparable() && e.Options.Stderr == e.Options.Stdout {
		e.Cmd.Stderr = w
		return nil
	}
	if w, err = out.pipe(e.Options.Stderr); err == nil {
		e.Cmd.Stderr = w
	}
	return err
}

// result returns the command's exit code.
func (e *Execution) result(ctx context.Context, err error) (int, error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return e.Cmd.ProcessState.ExitCode(), nil
	case errors.As(err, &exit):
		if code, err, refused := e.Refused(); refused && exit.Exited() {
			return code, err
		}
		if exit.Exited() {
			return exit.ExitCode(), nil
		}
		return 128 + int(exit.Sys().(syscall.WaitStatus).Signal()), nil //nolint:forcetypeassert // Linux
	default:
		return 0, err
	}
}

// CodeNotFound and CodeNotRunnable are the exit codes with which shells distinguish a program that
// is not found from one that cannot be executed.
const (
	CodeNotRunnable = 126
	CodeNotFound    = 127
)

// A program on a terminal must know the type of the terminal. Every client's terminal understands
// the control sequences of xterm.
const (
	termName = "TERM"
	// DefaultTerm is the variable for a program on a terminal that has none.
	DefaultTerm = termName + "=xterm"
)

// HasTerm reports whether an environment contains the type of the terminal.
func HasTerm(env []string) bool {
	return slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, termName+"=") })
}

// KillSession kills the session that a process leads.
func KillSession(pid int) {
	_ = unix.Kill(-pid, unix.SIGKILL)
	_ = unix.Kill(pid, unix.SIGKILL)
}
