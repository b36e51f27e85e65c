// Package socket connects to the unix sockets of a VMM. The VMM may be slow or gone, or another
// process may serve the socket.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/pause"
)

// retry is the interval of attempts while the socket's queue is full.
const retry = 5 * time.Millisecond

var (
	// ErrGone is returned if no process serves the socket, or if the peer closed the connection.
	ErrGone = errors.New("the VMM does not answer on its socket")
	// ErrPeer is returned if another process than the VMM serves it.
	ErrPeer = errors.New("the socket belongs to another process")
)

// Connect connects to a unix socket. The process that serves it must have the user uid.
func Connect(ctx context.Context, path string, uid uint32) (*net.UnixConn, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			c := conn.(*net.UnixConn)
			if err := Validate(c, uid); err != nil {
				return nil, errors.Join(err, c.Close())
			}
			return c, nil
		}
		// The dialer uses the context's deadline, which may pass a moment earlier.
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
			<-ctx.Done()
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		// For a non-blocking socket, a full queue is EAGAIN.
		if !errors.Is(err, syscall.EAGAIN) {
			return nil, Gone(err)
		}
		if !pause.For(ctx, retry) {
			return nil, context.Cause(ctx)
		}
	}
}

// Gone converts errors that mean that the peer is gone to ErrGone.
func Gone(err error) error {
	for _, is := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, fs.ErrNotExist, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, is) {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
	}
	return err
}

// Validate refuses a peer that runs as another user than uid.
func Validate(conn *net.UnixConn, uid uint32) error {
	peer, err := peerOf(conn)
	if err == nil && peer.Uid != uid {
		err = fmt.Errorf("%w: its user is %d instead of %d", ErrPeer, peer.Uid, uid)
	}
	return err
}

func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) {
		peer, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(err, failure)
}
