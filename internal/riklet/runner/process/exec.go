package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/command"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim/launch"
)

func (e *apps) Exec(ctx context.Context, r engine.Running, name string, o instance.ExecOptions) (int, error) {
	node := e.host.Node()
	var saved note
	if err := engine.ReadJSON(processFile(node.Paths, r.Instance.UID, name), &saved); err != nil {
		return 0, fmt.Errorf("%w: %w", instance.ErrNotRunning, err)
	}
	p := saved.Process
	p.Argv = o.Command
	if o.TTY && !command.HasTerm(p.Env) {
		p.Env = append(slices.Clone(p.Env), command.DefaultTerm)
	}
	if p.NamespacesOf, _ = r.Namespaces(); p.NamespacesOf == 0 && !r.Instance.Template.HostNetwork {
		return 0, instance.ErrNotRunning
	}
	x := &command.Execution{Options: o, Cmd: launch.Command(node.Shim, p)}
	x.Cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	x.Cmd.WaitDelay = command.Stuck
	x.Refused = func() (int, error, bool) { return 0, nil, false }
	started := make(chan struct{})
	x.Start = func() error {
		defer close(started)
		return launch.Start(x.Cmd)
	}
	defer context.AfterFunc(ctx, func() {
		if <-started; x.Cmd.Process != nil {
			command.KillSession(x.Cmd.Process.Pid)
		}
	})()
	code, err := x.RunOrAbandon(ctx)
	if failure, ok := errors.AsType[*launch.Failure](err); ok && failure.Code != launch.CodeFailed {
		if o.Stderr != nil {
			fmt.Fprintln(o.Stderr, failure.Text)
		}
		return failure.Code, nil
	}
	return code, err
}
