package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

// Logs writes a container's log to w.
func (d *Driver) Logs(ctx context.Context, uid, name string, o instance.LogOptions, w io.Writer) error {
	m := d.machine(uid)
	if m == nil {
		return instance.ErrUnknown
	}
	name, err := m.pickLog(name)
	if err != nil {
		return err
	}
	tail := int64(-1)
	if o.TailLines != nil {
		tail = max(*o.TailLines, 0)
	}
	err = logfile.Read(ctx, d.paths.LogDir(uid, name), logfile.Options{
		Previous: o.Previous, Timestamps: o.Timestamps, Tail: tail, Since: o.Since, Follow: o.Follow && !o.Previous,
		Ended: func() bool { return m.over() || d.machine(uid) != m },
	}, w)
	if err != nil || ctx.Err() != nil {
		return err
	}
	return m.neverStarted(name)
}

// neverStarted returns why a container that has not run yet has no log.
func (m *machine) neverStarted(name string) error {
	o, _ := m.observation()
	for _, list := range [][]rikv1alpha1.ContainerStatus{o.Status.InitContainers, o.Status.Containers} {
		for _, c := range list {
			if c.Name != name || c.State != rikv1alpha1.ContainerWaiting || c.StartedAt != nil || c.LastState != nil || c.RestartCount > 0 {
				continue
			}
			why := o.Status.Reason
			if c.Reason != "" {
				why = c.Reason
			}
			if message := cmp.Or(c.Message, o.Status.Message); message != "" {
				why += ": " + message
			}
			return fmt.Errorf("container %q has not started: %s", name, why)
		}
	}
	return nil
}

// pick returns the named container, or the first container if name is empty.
func (m *machine) pick(name string) (string, error) {
	t := m.in.Template
	if main := t.Processes(); name == "" && len(main) > 0 {
		return main[0].Name, nil
	}
	for _, c := range engine.Containers(t) {
		if c.Name == name {
			return name, nil
		}
	}
	return "", fmt.Errorf("%w: container %q", instance.ErrUnknown, name)
}

// pickLog is pick, but it also accepts the console of a microVM.
func (m *machine) pickLog(name string) (string, error) {
	picked, err := m.pick(name)
	if err != nil && name == rikv1alpha1.ConsoleLog && m.in.Template.Virtual() {
		return engine.VMM, nil
	}
	return picked, err
}

// Exec runs a command in a container. It may return while a read from Stdin still blocks. The
// owner of Stdin closes it.
func (d *Driver) Exec(ctx context.Context, uid, name string, o instance.ExecOptions) (int, error) {
	m := d.machine(uid)
	if m == nil {
		return 0, instance.ErrUnknown
	}
	name, err := m.pick(name)
	if err != nil {
		return 0, err
	}
	if !m.runs(name) {
		return 0, fmt.Errorf("%w: %q", instance.ErrNotRunning, name)
	}
	if err := m.suspended(); err != nil {
		return 0, err
	}
	return m.exec(ctx, name, o)
}

func (m *machine) exec(ctx context.Context, name string, o instance.ExecOptions) (int, error) {
	if len(o.Command) == 0 {
		return 0, errors.New("no command to run")
	}
	return m.engine.Exec(ctx, m.engineRunning(), name, o)
}

// runs reports whether the container was running at the last observation.
func (m *machine) runs(name string) bool {
	o, _ := m.observation()
	for _, c := range append(o.Status.Containers, o.Status.InitContainers...) {
		if c.Name == name {
			return c.State == "Running"
		}
	}
	return false
}

// Dial connects to a port of an instance.
func (d *Driver) Dial(ctx context.Context, uid string, port int32) (io.ReadWriteCloser, error) {
	m := d.machine(uid)
	if m == nil {
		return nil, instance.ErrUnknown
	}
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("port %d is not between 1 and 65535", port)
	}
	if err := m.suspended(); err != nil {
		return nil, err
	}
	return m.engine.Dial(ctx, m.engineRunning(), port)
}
