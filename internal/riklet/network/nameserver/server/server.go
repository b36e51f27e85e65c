// Package server is the process of a node's name server, cmd/rik-dns. It answers from the netmap
// that the riklet last sent, as long as it runs.
package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"rik.dev/rik/internal/riklet/network/dns"
	"rik.dev/rik/internal/riklet/network/nameserver"
	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/rpc/nodev1"
)

// maxLog is the size of the log, in bytes, at which it is truncated.
const maxLog = 1 << 20

type server struct {
	hello   nameserver.Hello
	control *net.UnixListener
	udp     *net.UDPConn
	tcp     *net.TCPListener
	table   *netmap.Store
	end     context.CancelFunc
	known   chan struct{} // closed when the first netmap has arrived

	mu      sync.Mutex
	current *net.UnixConn // the last connection: only its frames count
}

// Run answers DNS queries until ctx ends, or the riklet orders it to end. args are the settings.
// The sockets are inherited descriptors.
func Run(ctx context.Context, args []string) error {
	var settings nameserver.Settings
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &settings) != nil {
		return errors.New("the riklet starts this program; do not start it yourself")
	}
	program, err := nameserver.Program("/proc/self/exe")
	if err != nil {
		return err
	}
	s := &server{known: make(chan struct{}), hello: nameserver.Hello{Protocol: nameserver.Protocol, Program: program, PID: os.Getpid(), Settings: settings}}
	if err := s.take(); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(&bounded{file: os.Stderr}, nil))
	s.table = netmap.Open(netmap.Config{Logger: logger})
	names := dns.New(dns.Config{Listen: settings.Address, Snapshot: s.table.Snapshot, Resolver: settings.Resolver, Logger: logger}, s.udp, s.tcp)
	ctx, s.end = context.WithCancel(ctx)
	defer s.end()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		// Queries wait in the sockets until there is a netmap.
		select {
		case <-ctx.Done():
			return names.Close()
		case <-s.known:
			return names.Run(ctx)
		}
	})
	group.Go(func() error { return s.accept(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		_ = s.control.Close()
		return nil
	})
	return group.Wait()
}

// take creates sockets from the descriptors.
func (s *server) take() error {
	for fd, use := range map[uintptr]func(*os.File) error{
		nameserver.ControlFD: func(f *os.File) error { return as(&s.control, f, net.FileListener) },
		nameserver.UDPFD:     func(f *os.File) error { return as(&s.udp, f, net.FilePacketConn) },
		nameserver.TCPFD:     func(f *os.File) error { return as(&s.tcp, f, net.FileListener) },
	} {
		f := os.NewFile(fd, "socket")
		if err := errors.Join(use(f), f.Close()); err != nil {
			return fmt.Errorf("taking over descriptor %d: %w", fd, err)
		}
	}
	s.control.SetUnlinkOnClose(false)
	return nil
}

func as[T, I any](to *T, f *os.File, open func(*os.File) (I, error)) error {
	opened, err := open(f)
	if err != nil {
		return err
	}
	wanted, ok := any(opened).(T)
	if !ok {
		return fmt.Errorf("it is a %T", opened)
	}
	*to = wanted
	return nil
}

// accept serves the riklet's connections until ctx ends.
func (s *server) accept(ctx context.Context) error {
	for {
		conn, err := s.control.AcceptUnix()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		if err != nil {
			return fmt.Errorf("waiting for the riklet: %w", err)
		}
		s.mu.Lock()
		if s.current != nil {
			_ = s.current.Close()
		}
		s.current = conn
		s.mu.Unlock()
		go s.serve(conn)
	}
}

// serve handles the frames of one connection.
func (s *server) serve(conn *net.UnixConn) {
	defer conn.Close()
	hello, err := json.Marshal(s.hello)
	if err != nil {
		return
	}
	if _, err := conn.Write(append(hello, '\n')); err != nil {
		return
	}
	reader := bufio.NewReader(conn)
	for {
		kind, payload, err := nameserver.ReadFrame(reader)
		switch {
		case err != nil:
			return
		case kind == nameserver.Leave:
			s.leave(conn)
			return
		case kind == nameserver.Changes && !s.apply(conn, payload):
			return
		}
	}
}

// apply applies changes of the netmap. They count only on the last connection.
func (s *server) apply(conn *net.UnixConn, payload []byte) bool {
	changes := &nodev1.NetworkChanges{}
	if err := proto.Unmarshal(payload, changes); err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != conn {
		return false
	}
	s.table.Apply(changes)
	select {
	case <-s.known:
	default:
		close(s.known)
	}
	return true
}

// leave passes the sockets to the riklet and ends the server. Queries that it has received are
// still answered. The connection stays open until the process ends.
func (s *server) leave(conn *net.UnixConn) {
	err := withFD(s.udp, func(udp int) error {
		return withFD(s.tcp, func(tcp int) error {
			_, _, err := conn.WriteMsgUnix([]byte{1}, unix.UnixRights(udp, tcp), nil)
			return err
		})
	})
	if err != nil {
		return // the riklet kills a process that does not leave
	}
	s.end()
	_, _ = conn.Read(make([]byte, 1))
}

// withFD calls use with a socket's descriptor.
func withFD(c syscall.Conn, use func(int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var used error
	err = raw.Control(func(fd uintptr) { used = use(int(fd)) })
	return errors.Join(err, used)
}

// bounded is a log that is truncated at maxLog bytes.
type bounded struct {
	mu   sync.Mutex
	file *os.File
	size int
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size+len(p) > maxLog {
		_ = b.file.Truncate(0)
		b.size = 0
	}
	b.size += len(p)
	return b.file.Write(p)
}
