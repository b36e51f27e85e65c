package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
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
	err = logfile.Read(ctx, d.logDir(uid, name), logfile.Options{
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
	t := m.rec.Instance.Template // never changes
	if main := t.Processes(); name == "" && len(main) > 0 {
		return main[0].Name, nil
	}
	for _, c := range allContainers(t) {
		if c.Name == name {
			return name, nil
		}
	}
	return "", fmt.Errorf("%w: container %q", instance.ErrUnknown, name)
}

// pickLog is pick, but it also accepts the console of a microVM.
func (m *machine) pickLog(name string) (string, error) {
	picked, err := m.pick(name)
	if err != nil && name == rikv1alpha1.ConsoleLog && m.rec.Instance.Template.Virtual() {
		return vmmContainer, nil
	}
	return picked, err
}

// over reports that no more log lines will follow.
func (m *machine) over() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}

// stuckCommand is how long to wait for a command after it was killed.
const stuckCommand = 2 * time.Second

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
	return m.engine.exec(ctx, m, name, o)
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

// execution is one command in a container. cmd is a process on the node: the command itself or a
// proxy for it.
type execution struct {
	cmd *exec.Cmd
	o   instance.ExecOptions
	// start starts cmd.
	start func() error
	// refused is called after cmd failed. It reports whether the command was not run at all, and
	// returns the exit code or error for that case.
	refused func() (code int, err error, refused bool)
}

// do runs the command to its end.
func (e *execution) do(ctx context.Context) (int, error) {
	if e.o.TTY {
		return e.runTTY(ctx)
	}
	return e.run(ctx)
}

// doOrLeave is do for a command that is a process of the instance. It also returns when ctx ends:
// a process of a suspended instance does not die of a signal until the instance resumes.
func (e *execution) doOrLeave(ctx context.Context) (int, error) {
	type result struct {
		code int
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		code, err := e.do(ctx)
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
	case <-time.After(2 * stuckCommand):
		return 0, context.Cause(ctx)
	}
}

func (e *execution) run(ctx context.Context) (int, error) {
	var out outputs
	if err := e.connect(&out); err != nil {
		out.started()
		return 0, err
	}
	var stdin io.WriteCloser
	if e.o.Stdin != nil {
		var err error
		if stdin, err = e.cmd.StdinPipe(); err != nil {
			out.started()
			return 0, err
		}
	}
	err := e.start()
	out.started()
	if err != nil {
		out.ended(ctx)
		return 0, err
	}
	if stdin != nil {
		go func() {
			_, _ = io.Copy(stdin, e.o.Stdin)
			_ = stdin.Close()
		}()
	}
	err = e.cmd.Wait()
	out.ended(ctx)
	return e.result(ctx, err)
}

// connect connects the command's output to the sinks. If both outputs have the same sink, they
// share one pipe, so that there is only one writer.
func (e *execution) connect(out *outputs) error {
	w, err := out.pipe(e.o.Stdout)
	if err != nil {
		return err
	}
	if w != nil {
		e.cmd.Stdout = w
	}
	if e.o.Stderr == nil {
		return nil
	}
	if reflect.TypeOf(e.o.Stderr).Comparable() && e.o.Stderr == e.o.Stdout {
		e.cmd.Stderr = w
		return nil
	}
	if w, err = out.pipe(e.o.Stderr); err == nil {
		e.cmd.Stderr = w
	}
	return err
}

// runTTY connects the process to a terminal of the node. A runtime creates another terminal
// inside the container and forwards the input and the window sizes.
func (e *execution) runTTY(ctx context.Context) (int, error) {
	master, slave, err := openPTY()
	if err != nil {
		return 0, err
	}
	defer master.Close()
	e.cmd.Stdin, e.cmd.Stdout, e.cmd.Stderr = slave, slave, slave
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = e.start()
	_ = slave.Close()
	if err != nil {
		return 0, err
	}
	done := make(chan struct{})
	var output sync.WaitGroup
	output.Go(func() {
		sink := e.o.Stdout
		if sink == nil {
			sink = io.Discard
		}
		carry(sink, master) // ends with EIO when the last slave closes
	})
	if e.o.Stdin != nil {
		go func() { _, _ = io.Copy(master, e.o.Stdin) }()
	}
	if e.o.Resize != nil {
		go resize(master, e.o.Resize, done)
	}
	err = e.cmd.Wait()
	close(done)
	stopReading(master)
	output.Wait()
	return e.result(ctx, err)
}

func resize(master *os.File, sizes <-chan instance.Size, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case s, ok := <-sizes:
			if !ok {
				return
			}
			_ = control(master, func(fd int) error {
				return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Height, Col: s.Width})
			})
		}
	}
}

// result returns the command's exit code.
func (e *execution) result(ctx context.Context, err error) (int, error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return e.cmd.ProcessState.ExitCode(), nil
	case errors.As(err, &exit):
		if code, err, refused := e.refused(); refused && exit.Exited() {
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

// Exit codes with which shells distinguish a program that is not found from one that cannot be
// executed.
const (
	codeNotRunnable = 126
	codeNotFound    = 127
)

// openPTY opens a terminal in raw mode, because the terminal inside the container does the line
// editing.
func openPTY() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	defer func() {
		if err != nil {
			_ = master.Close()
		}
	}()
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlocking the terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, fmt.Errorf("naming the terminal: %w", err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	return master, slave, control(slave, raw)
}

func control(f *os.File, act func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = c.Control(func(fd uintptr) { inner = act(int(fd)) })
	return errors.Join(err, inner)
}

func raw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}
