package microvm

import (
	"context"
	"errors"
	"fmt"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/command"
	"rik.dev/rik/internal/riklet/runner/engine"
)

func (e *machines) Exec(ctx context.Context, r engine.Running, name string, o instance.ExecOptions) (int, error) {
	process := guest.Process{Container: name, Exec: true, Argv: o.Command, TTY: o.TTY}
	if o.TTY {
		process.Env = []string{command.DefaultTerm} // the container's TERM wins
	}
	running, err := e.guest(r.Instance.UID).Run(ctx, process, guest.Streams{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr})
	if code, never := startErrorCode(err); never {
		if o.Stderr != nil {
			fmt.Fprintln(o.Stderr, err)
		}
		return code, nil
	}
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.Resize != nil {
		go resizeGuest(ctx, running, o.Resize)
	}
	exit, err := running.Wait()
	return exit.Code, err
}

func startErrorCode(err error) (code int, never bool) {
	switch {
	case errors.Is(err, guest.ErrNoProgram):
		return command.CodeNotFound, true
	case errors.Is(err, guest.ErrNotRunnable):
		return command.CodeNotRunnable, true
	default:
		return 0, false
	}
}

func resizeGuest(ctx context.Context, running guest.Running, sizes <-chan instance.Size) {
	for {
		select {
		case <-ctx.Done():
			return
		case s, ok := <-sizes:
			if !ok || running.Resize(ctx, guest.Size{Width: s.Width, Height: s.Height}) != nil {
				return
			}
		}
	}
}
