package nameserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"rik.dev/rik/internal/rpc/nodev1"
)

const (
	// answerWithin bounds the wait for a process that accepted a connection.
	answerWithin = 10 * time.Second
	// receiveBuffer is the buffer for queries that were not read yet, in bytes.
	receiveBuffer = 4 << 20
	// maxHello bounds the greeting, in bytes.
	maxHello = 64 << 10
	// maxLog bounds the log file of a process, in bytes.
	maxLog = 1 << 20
)

// errGone is returned if no process listens at the socket.
var errGone = errors.New("the name server does not run")

// Config describes the desired process.
type Config struct {
	// Program is its command line, without the settings.
	Program []string
	// Socket is the path of its control socket, at most 107 bytes. Log is its log file.
	Socket, Log string
	Settings    Settings
}

// Client is a connection to a process.
type Client struct {
	conn  *net.UnixConn
	hello Hello
	gone  chan struct{}
}

// Ensure connects to the desired process. A running process with the desired program and settings
// stays. Any other process is replaced: the new process takes over its sockets, so that no query is
// lost. If no process runs, Ensure opens the sockets.
func Ensure(ctx context.Context, cfg Config) (*Client, error) {
	program, err := programOf(cfg.Program)
	if err != nil {
		return nil, fmt.Errorf("starting the name server: %w", err)
	}
	var sockets []*os.File
	c, err := connect(ctx, cfg.Socket)
	switch {
	case errors.Is(err, errGone):
	case err != nil:
		return nil, err
	case c.hello.Protocol == Protocol && c.hello.Program == program && c.hello.Settings.matches(cfg.Settings):
		c.watch()
		return c, nil
	default:
		sockets, err = c.replace(cfg.Settings.Address.Addr())
		if err != nil {
			return nil, err
		}
		if len(sockets) > 0 {
			cfg.Settings.Address = c.hello.Settings.Address
		}
	}
	defer func() { closeAll(sockets) }()
	if len(sockets) == 0 {
		if sockets, cfg.Settings.Address, err = bind(ctx, cfg.Settings.Address); err != nil {
			return nil, err
		}
	}
	if err := start(ctx, cfg, sockets); err != nil {
		return nil, err
	}
	if c, err = connect(ctx, cfg.Socket); err != nil {
		return nil, fmt.Errorf("%w; its log %s ends with: %s", err, cfg.Log, logTail(cfg.Log))
	}
	c.watch()
	return c, nil
}

// Remove ends the process that listens at a socket, if there is one, and removes the socket.
func Remove(ctx context.Context, socket string) error {
	c, err := connect(ctx, socket)
	if err == nil {
		var sockets []*os.File
		sockets, err = c.leave()
		closeAll(sockets)
		c.watch()
		select {
		case <-c.gone: // it ended
		case <-ctx.Done():
			err = errors.Join(err, ctx.Err())
		}
		_ = c.conn.Close()
	}
	if err != nil && !errors.Is(err, errGone) {
		return fmt.Errorf("stopping the name server: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Address returns the address at which the process listens.
func (c *Client) Address() netip.AddrPort { return c.hello.Settings.Address }

// Gone returns a channel that is closed when the process has ended or serves another connection.
func (c *Client) Gone() <-chan struct{} { return c.gone }

// Close closes the connection. The process continues.
func (c *Client) Close() { _ = c.conn.Close() }

// send sends changes of the netmap.
func (c *Client) send(changes *nodev1.NetworkChanges) error {
	payload, err := proto.Marshal(changes)
	if err != nil {
		return fmt.Errorf("encoding the netmap: %w", err)
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(answerWithin))
	return WriteFrame(c.conn, Changes, payload)
}

// watch detects the end of the connection. Nothing else arrives on it.
func (c *Client) watch() {
	_ = c.conn.SetReadDeadline(time.Time{})
	go func() {
		defer close(c.gone)
		_, _ = c.conn.Read(make([]byte, 1))
	}()
}

// connect returns errGone if no process listens.
func connect(ctx context.Context, socket string) (*Client, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to the name server: %w", err)
	}
	c := &Client{conn: raw.(*net.UnixConn), gone: make(chan struct{})} //nolint:forcetypeassert // network "unix" gives nothing else
	_ = c.conn.SetReadDeadline(time.Now().Add(answerWithin))
	line, err := bufio.NewReaderSize(c.conn, maxHello).ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(line, &c.hello)
	}
	if err != nil {
		_ = c.conn.Close()
		return nil, fmt.Errorf("no greeting from the name server at %s: %w", socket, err)
	}
	return c, nil
}

// replace ends a process, and returns its sockets if they are at the desired address.
func (c *Client) replace(address netip.Addr) ([]*os.File, error) {
	defer c.Close()
	sockets, err := c.leave()
	if err != nil {
		// The process still runs, so its PID was not reused.
		if killed := unix.Kill(c.hello.PID, unix.SIGKILL); killed != nil {
			return nil, fmt.Errorf("stopping name server %d: %w", c.hello.PID, errors.Join(err, killed))
		}
		return nil, nil
	}
	if !c.hello.Settings.listensAt(address) {
		closeAll(sockets)
		return nil, nil
	}
	return sockets, nil
}

// leave makes a process pass on its sockets and end.
func (c *Client) leave() ([]*os.File, error) {
	_ = c.conn.SetDeadline(time.Now().Add(answerWithin))
	if err := WriteFrame(c.conn, Leave, nil); err != nil {
		return nil, err
	}
	rights := make([]byte, unix.CmsgSpace(2*4))
	_, n, _, _, err := c.conn.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil {
		return nil, err
	}
	var sockets []*os.File
	for _, m := range messages {
		descriptors, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		for _, d := range descriptors {
			sockets = append(sockets, os.NewFile(uintptr(d), "socket"))
		}
	}
	if len(sockets) != 2 {
		closeAll(sockets)
		return nil, fmt.Errorf("it sent %d sockets instead of 2", len(sockets))
	}
	return sockets, nil
}

// attempts bounds the search for a port that is free for both UDP and TCP.
const attempts = 10

// bind opens the UDP and TCP sockets. If a process of the machine has the port, the kernel
// chooses another one.
func bind(ctx context.Context, address netip.AddrPort) (sockets []*os.File, at netip.AddrPort, err error) {
	for range attempts {
		sockets, at, err = bindTo(ctx, address)
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		address = netip.AddrPortFrom(address.Addr(), 0)
	}
	return sockets, at, err
}

// bindTo opens the sockets at a port. If the port is 0, the kernel chooses one.
func bindTo(ctx context.Context, address netip.AddrPort) ([]*os.File, netip.AddrPort, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			// All instances of the node may send queries at once. Without the privilege, the
			// buffer keeps its size.
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
		})
	}}
	udp, err := config.ListenPacket(ctx, "udp", address.String())
	if err != nil {
		return nil, address, fmt.Errorf("serving DNS at %s: %w", address, err)
	}
	defer udp.Close()
	address = udp.LocalAddr().(*net.UDPAddr).AddrPort() //nolint:forcetypeassert // it listens on UDP
	tcp, err := config.Listen(ctx, "tcp", address.String())
	if err != nil {
		return nil, address, fmt.Errorf("serving DNS at %s: %w", address, err)
	}
	defer tcp.Close()
	first, err := udp.(*net.UDPConn).File() //nolint:forcetypeassert // it listens on UDP
	if err != nil {
		return nil, address, err
	}
	second, err := tcp.(*net.TCPListener).File() //nolint:forcetypeassert // it listens on TCP
	if err != nil {
		return nil, address, errors.Join(err, first.Close())
	}
	return []*os.File{first, second}, address, nil
}

// start starts a process in its own session, so that it outlives this process.
func start(ctx context.Context, cfg Config, sockets []*os.File) error {
	settings, err := json.Marshal(cfg.Settings)
	if err != nil {
		return err
	}
	if info, err := os.Stat(cfg.Log); err == nil && info.Size() > maxLog {
		_ = os.Truncate(cfg.Log, 0)
	}
	log, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("starting the name server: %w", err)
	}
	defer log.Close()
	control, err := listen(ctx, cfg.Socket)
	if err != nil {
		return fmt.Errorf("starting the name server: %w", err)
	}
	defer control.Close()
	cmd := exec.Command(cfg.Program[0], append(cfg.Program[1:len(cfg.Program):len(cfg.Program)], string(settings))...)
	cmd.Dir = "/"
	cmd.Stderr = log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GOMAXPROCS=2", "GOGC=50"}
	cmd.ExtraFiles = append([]*os.File{control}, sockets...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the name server %s: %w", cfg.Program[0], err)
	}
	// It is a child of this process, which must wait for its end.
	go func() { _ = cmd.Wait() }()
	return nil
}

// listen creates the control socket as a file for the process to inherit.
func listen(ctx context.Context, path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	unixListener := l.(*net.UnixListener) //nolint:forcetypeassert // network "unix" gives nothing else
	unixListener.SetUnlinkOnClose(false)
	f, err := unixListener.File()
	return f, errors.Join(err, os.Chmod(path, 0o600), l.Close())
}

// programOf identifies the file that a command line runs.
func programOf(command []string) (string, error) {
	if len(command) == 0 {
		return "", errors.New("the program is not set")
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return "", err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	return Program(path)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func logTail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil || len(data) == 0 {
		return "(nothing)"
	}
	return string(data[max(0, len(data)-1000):])
}
