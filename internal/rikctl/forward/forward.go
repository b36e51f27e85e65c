// Package forward listens on the user's machine and connects each connection to a port of an
// instance. Connections are independent: a connection that fails or is read slowly does not
// affect the others.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/rpc/portstream"
)

// Localhost in [Config.Addresses] means the loopback addresses of IPv4 and IPv6. On a machine
// without IPv6 it means only that of IPv4.
const Localhost = "localhost"

// Config configures a [Forwarder]. All fields are required.
type Config struct {
	// Addresses to listen on: IP addresses, or Localhost.
	Addresses []string
	Ports     []Port
	// Dial opens a new connection to a port of the instance.
	Dial func(ctx context.Context, port int) (*portstream.Stream, error)
	// Final reports whether every later Dial would fail with the same error.
	Final func(error) bool
	// Out receives the addresses of the listeners, Err the errors of connections.
	Out, Err io.Writer
}

// Forwarder holds the listeners.
type Forwarder struct {
	config    Config
	listeners []listener

	outputMu sync.Mutex // serializes lines of output
}

type listener struct {
	net.Listener
	port Port
}

// Listen opens all local ports, or none if one fails.
func Listen(ctx context.Context, c Config) (*Forwarder, error) {
	f := &Forwarder{config: c}
	for _, port := range c.Ports {
		for _, address := range c.Addresses {
			if err := f.listen(ctx, address, port); err != nil {
				return nil, errors.Join(err, f.close())
			}
		}
	}
	for _, l := range f.listeners {
		f.say(c.Out, "Forwarding from %s -> %d\n", l.Addr(), l.port.Remote)
	}
	return f, nil
}

func (f *Forwarder) listen(ctx context.Context, address string, port Port) error {
	if address != Localhost {
		_, err := f.open(ctx, address, port)
		return err
	}
	taken, err := f.open(ctx, "127.0.0.1", port)
	if err != nil {
		return err
	}
	port.Local = taken
	// A machine may have no IPv6, and a port that is free on IPv4 may be in use on IPv6.
	_, _ = f.open(ctx, "::1", port)
	return nil
}

func (f *Forwarder) open(ctx context.Context, address string, port Port) (taken int, err error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port.Local)))
	if err != nil {
		return 0, fmt.Errorf("listening for port %d: %w", port.Remote, err)
	}
	f.listeners = append(f.listeners, listener{l, port})
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (f *Forwarder) close() error {
	var problems []error
	for _, l := range f.listeners {
		problems = append(problems, l.Close())
	}
	return errors.Join(problems...)
}

// Run forwards connections until ctx ends or an error is final. It returns the cause of ctx or
// the error. When it returns, all connections are closed.
func (f *Forwarder) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		<-ctx.Done()
		_ = f.close()
		return context.Cause(ctx)
	})
	for _, l := range f.listeners {
		group.Go(func() error { return f.accept(ctx, group, l) })
	}
	return group.Wait()
}

func (f *Forwarder) accept(ctx context.Context, group *errgroup.Group, l listener) error {
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting connections on %s: %w", l.Addr(), err)
		}
		group.Go(func() error {
			err := f.join(ctx, conn.(*net.TCPConn), l.port.Remote)
			if err == nil || ctx.Err() != nil {
				return nil //nolint:nilerr // what fails because all ends is no news
			}
			if f.config.Final(err) {
				return err
			}
			f.say(f.config.Err, "a connection from %s to port %d failed: %v\n", conn.RemoteAddr(), l.port.Remote, err)
			return nil
		})
	}
}

func (f *Forwarder) say(to io.Writer, format string, args ...any) {
	f.outputMu.Lock()
	defer f.outputMu.Unlock()
	_, _ = fmt.Fprintf(to, format, args...)
}

// join forwards one connection. If the far side fails, it resets the local connection, because a
// normal close could be mistaken for the end of the data.
func (f *Forwarder) join(ctx context.Context, local *net.TCPConn, port int) error {
	defer local.Close()
	remote, err := f.config.Dial(ctx, port)
	if err != nil {
		_ = local.SetLinger(0)
		return err
	}
	defer remote.Close()
	defer context.AfterFunc(ctx, func() {
		_ = local.SetLinger(0)
		_ = local.Close()
		_ = remote.Close()
	})()
	// left: the local side closed the connection, which is not an error. over: the far side has
	// ended the connection.
	var left, over atomic.Bool
	var upward sync.WaitGroup
	upward.Go(func() {
		if _, err := io.Copy(remote, local); err != nil {
			left.Store(!over.Load() && !errors.Is(err, portstream.ErrCut))
			_ = remote.Close()
			return
		}
		_ = remote.CloseWrite() // if the far side is gone, the read reports it
	})
	// Hide ReadFrom, which would wrap the error of remote.
	_, err = io.Copy(struct{ io.Writer }{local}, remote)
	if err == nil {
		_ = local.CloseWrite() // the local side may have closed it already
		err = remote.Wait()
	}
	if err != nil {
		_ = local.SetLinger(0)
	}
	over.Store(true)
	_ = local.Close()
	_ = remote.Close()
	upward.Wait()
	if left.Load() || !isRemoteError(err) {
		return nil
	}
	return err
}

// isRemoteError reports whether an error is from the far side and not from writing to the local side.
func isRemoteError(err error) bool {
	var reported *portstream.RemoteError
	return errors.As(err, &reported) || errors.Is(err, portstream.ErrCut)
}
