package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
)

// Spawn describes a new supervisor.
type Spawn struct {
	Binary string
	Socket string // path; at most 107 bytes
	Log    string // file for the supervisor's error output
	// HostNetwork keeps the supervisor in the node's network namespace. Otherwise it gets a new
	// network namespace, which lives as long as the supervisor. It always gets new IPC and UTS
	// namespaces.
	HostNetwork bool
	Settings    Settings
}

// Client is one connection to a supervisor. It is safe for concurrent use.
type Client struct {
	conn   *net.UnixConn
	enc    *json.Encoder
	hello  Hello
	proc   *os.File // pidfd of the supervisor
	exits  chan Container
	closed chan struct{} // closed when the connection has ended

	mu      sync.Mutex // guards the fields below, and the order of requests
	next    int64
	waiting map[int64]chan Message
	ended   bool
}

// Run starts a supervisor and connects to it. The supervisor runs in a new session and continues
// when this process ends.
func Run(ctx context.Context, s Spawn) (*Client, error) {
	listener, err := listen(s.Socket)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	cmd, err := command(s)
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{listener}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the supervisor %s: %w", s.Binary, err)
	}
	if f, ok := cmd.Stderr.(*os.File); ok {
		_ = f.Close()
	}
	// It is our child while this process lives, so it must be waited for.
	go func() { _ = cmd.Wait() }()
	// The supervisor's copy is then the only listener, so connecting fails once the supervisor
	// is gone.
	_ = listener.Close()
	c, err := Connect(ctx, s.Socket)
	if err != nil {
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("%w; its last output: %s", err, logTail(s.Log))
	}
	return c, nil
}

func command(s Spawn) (*exec.Cmd, error) {
	settings, err := json.Marshal(s.Settings)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(s.Binary, string(settings))
	cmd.Dir = "/"
	cmd.Stderr = log
	// A supervisor does little work, so one processor and a small heap are enough.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GOMAXPROCS=1", "GOGC=20"}
	flags := uintptr(unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if !s.HostNetwork {
		flags |= unix.CLONE_NEWNET
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: flags}
	return cmd, nil
}

// listen creates the socket and returns it as a file for the child.
func listen(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("creating the supervisor's socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	return f, errors.Join(err, l.Close())
}

func logTail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil || len(data) == 0 {
		return "(none)"
	}
	return string(data[max(0, len(data)-1000):])
}

// helloTimeout is the timeout for the greeting after a supervisor has accepted the connection.
// It is long, because a busy machine does not mean that the supervisor is dead.
const helloTimeout = 30 * time.Second

// Connect connects to a running supervisor through its socket. ErrGone means that no supervisor
// runs, even if the path still exists.
func Connect(ctx context.Context, socket string) (*Client, error) {
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "unix", socket)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	conn := raw.(*net.UnixConn) //nolint:forcetypeassert // network "unix" gives nothing else
	c := &Client{
		conn: conn, enc: json.NewEncoder(conn), exits: make(chan Container, 64),
		closed: make(chan struct{}), waiting: map[int64]chan Message{},
	}
	dec := json.NewDecoder(conn)
	if err := c.greet(ctx, dec); err != nil {
		_ = conn.Close()
		return nil, err
	}
	go c.read(dec)
	return c, nil
}

func (c *Client) greet(ctx context.Context, dec *json.Decoder) error {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	var m Message
	if err := dec.Decode(&m); err != nil || m.Hello == nil {
		return fmt.Errorf("%w: no greeting: %w", ErrGone, err)
	}
	c.hello = *m.Hello
	// The supervisor is alive, so the process ID is still valid.
	fd, err := unix.PidfdOpen(c.hello.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("%w: opening process %d: %w", ErrGone, c.hello.PID, err)
	}
	c.proc = os.NewFile(uintptr(fd), "pidfd")
	return c.conn.SetReadDeadline(time.Time{})
}

// read receives messages until the connection ends.
func (c *Client) read(dec *json.Decoder) {
	defer c.end()
	for {
		var m Message
		if dec.Decode(&m) != nil {
			return
		}
		if m.ID == 0 {
			if m.Container != nil {
				c.exits <- *m.Container
			}
			continue
		}
		c.mu.Lock()
		answer := c.waiting[m.ID]
		delete(c.waiting, m.ID)
		c.mu.Unlock()
		if answer != nil {
			answer <- m
		}
	}
}

func (c *Client) end() {
	c.mu.Lock()
	c.ended = true
	for id, answer := range c.waiting {
		close(answer)
		delete(c.waiting, id)
	}
	c.mu.Unlock()
	close(c.exits)
	close(c.closed)
	_ = c.conn.Close()
}

// PID returns the process ID of the supervisor. Its namespaces are the Pod's.
func (c *Client) PID() int { return c.hello.PID }

// Containers returns the containers that the supervisor had at the time of the connection.
func (c *Client) Containers() []Container { return c.hello.Containers }

// Exits returns the channel of container exits since the connection. It is closed when the
// connection ends. The caller must read it.
func (c *Client) Exits() <-chan Container { return c.exits }

// Start starts a container and returns when its process runs. If the caller stops waiting, the
// supervisor continues the start. A *StartError is the supervisor's answer. Other errors mean
// that there was no answer.
func (c *Client) Start(ctx context.Context, s Start) (Container, error) {
	m, err := c.call(ctx, Request{Op: OpStart, Start: &s})
	if err != nil {
		return Container{}, err
	}
	if m.Error != "" || m.Container == nil {
		return Container{}, &StartError{ExitCode: m.ExitCode, Text: m.Error}
	}
	return *m.Container, nil
}

// Link makes the supervisor open its microVM's channel and share it at l.Socket, where
// GuestOpener connects. It returns when the guest's init has answered, or at once if it has
// answered before. When the channel ends, all runs in the guest end, and Link may be called
// again.
func (c *Client) Link(ctx context.Context, l Link) error {
	m, err := c.call(ctx, Request{Op: OpLink, Link: &l})
	if err == nil && m.Error != "" {
		err = errors.New(m.Error)
	}
	return err
}

// GuestOpener returns a function that opens streams to a guest whose channel a supervisor shares
// at socket. It is for guest.New, and works as long as the link exists.
func GuestOpener(socket string) guest.Opener {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", socket)
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: its supervisor opened no channel: %w", ErrGone, err)
		}
		return conn, err
	}
}

// Signal sends a signal to a container's first process. It is not an error if the process has
// ended. SIGKILL also ends a start in progress, because its runtime may hang forever.
func (c *Client) Signal(ctx context.Context, container string, signal syscall.Signal) error {
	m, err := c.call(ctx, Request{Op: OpSignal, Container: container, Signal: int(signal)})
	if err == nil && m.Error != "" {
		err = errors.New(m.Error)
	}
	return err
}

// Shutdown stops the supervisor and returns when its process is gone.
func (c *Client) Shutdown(ctx context.Context) error {
	m, err := c.call(ctx, Request{Op: OpShutdown})
	if err == nil && m.Busy {
		return ErrBusy
	}
	if err != nil && !errors.Is(err, ErrGone) {
		return err
	}
	return c.await(ctx)
}

// Kill kills the supervisor and returns when it is gone.
func (c *Client) Kill(ctx context.Context) error {
	raw, err := c.proc.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if err := errors.Join(err, sent); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing the supervisor: %w", err)
	}
	return c.await(ctx)
}

// await waits until the process has ended: its pidfd becomes readable.
func (c *Client) await(ctx context.Context) error {
	raw, err := c.proc.SyscallConn()
	if err != nil {
		return err
	}
	_ = c.proc.SetReadDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = c.proc.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n == 1
	})
	if err != nil {
		return fmt.Errorf("waiting for the end of supervisor %d: %w", c.PID(), errors.Join(err, context.Cause(ctx)))
	}
	return nil
}

// Close ends the connection, not the supervisor.
func (c *Client) Close() error {
	err := c.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // the other end has closed it first
	}
	for range c.exits { // lets the reader goroutine end
	}
	<-c.closed
	return errors.Join(err, c.proc.Close())
}

// call sends a request and waits for its answer.
func (c *Client) call(ctx context.Context, r Request) (Message, error) {
	answer := make(chan Message, 1)
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return Message{}, ErrGone
	}
	c.next++
	r.ID = c.next
	c.waiting[r.ID] = answer
	// A request has a few hundred bytes, and the other end always reads. The lock keeps requests
	// from mixing and is not held for long.
	err := c.enc.Encode(r)
	c.mu.Unlock()
	if err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	select {
	case m, ok := <-answer:
		if !ok {
			return m, ErrGone
		}
		return m, nil
	case <-ctx.Done():
		return Message{}, context.Cause(ctx)
	}
}
