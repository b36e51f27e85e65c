package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"
)

// A serial port has no beginning: bytes of a session that died may be in it. The node
// says "hello NONCE" again and again until the init answers "here NONCE"; then "go
// NONCE" once, and after the init's "ready NONCE" both begin the session. What comes
// before is dropped, and since neither says anything after its last line, nothing of
// the greeting gets into the session.
const (
	greeting  = "rik-guest-1 "
	helloWord = greeting + "hello "
	hereWord  = greeting + "here "
	goWord    = greeting + "go "
	readyWord = greeting + "ready "
	// lineLimit is more than any line of the greeting; what is longer is not one.
	lineLimit = 128
	// helloInterval is the first pause between hellos; it doubles up to helloAtMost. A
	// port that nobody has opened yet keeps a hello, so they need not be many.
	helloInterval = 250 * time.Millisecond
	helloAtMost   = 4 * time.Second
)

// Greet is the node's side. The reader that it returns must be used from then on.
func Greet(ctx context.Context, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	err := greet(conn)
	if ctx.Err() != nil {
		return fmt.Errorf("waiting for the guest's init: %w", context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("greeting the guest's init: %w", err)
	}
	return nil
}

func greet(conn net.Conn) error {
	// Another session's must not be taken for ours, but it is no secret; crypto/rand
	// would make every instance's supervisor 0.3 MB larger.
	nonce := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) //nolint:gosec // as above
	if err := helloUntilHere(conn, nonce); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, goWord+nonce+"\n"); err != nil {
		return err
	}
	return await(conn, readyWord+nonce)
}

func helloUntilHere(conn net.Conn, nonce string) error {
	here := make(chan error, 1)
	go func() { here <- await(conn, hereWord+nonce) }()
	pause := helloInterval
	for {
		// The leading line end closes whatever half line is in the port.
		if err := writeOrClose(conn, "\n"+helloWord+nonce+"\n"); err != nil {
			_ = conn.Close()
			return errors.Join(err, <-here)
		}
		select {
		case err := <-here:
			return err
		case <-time.After(pause):
			pause = min(2*pause, helloAtMost)
		}
	}
}

// writeOrClose writes; it blocks until conn is closed when the other end does not read.
func writeOrClose(conn net.Conn, text string) error {
	_, err := io.WriteString(conn, text)
	return err
}

// await drops all lines up to the one wanted.
func await(r io.Reader, want string) error {
	for {
		line, err := greetingLine(r)
		if err != nil {
			return err
		}
		if line == want {
			return nil
		}
	}
}

// Answer is the init's side: it drops everything until a node greets it.
func Answer(rw io.ReadWriter) error {
	for {
		line, err := greetingLine(rw)
		if err != nil {
			return err
		}
		if nonce, ok := strings.CutPrefix(line, goWord); ok {
			_, err := io.WriteString(rw, readyWord+nonce+"\n")
			return err
		}
		if nonce, ok := strings.CutPrefix(line, helloWord); ok {
			if _, err := io.WriteString(rw, hereWord+nonce+"\n"); err != nil {
				return err
			}
		}
	}
}

// greetingLine reads a line byte by byte, so as not to read into the session; of one
// that is too long it gives the beginning.
func greetingLine(r io.Reader) (string, error) {
	var line []byte
	var one [1]byte
	for {
		if _, err := io.ReadFull(r, one[:]); err != nil {
			return "", err
		}
		if one[0] == '\n' {
			return string(line), nil
		}
		if len(line) < lineLimit {
			line = append(line, one[0])
		}
	}
}

// Vsock asks a VMM that maps vsock to a unix socket for a port of the guest, as
// Firecracker defines it: https://github.com/firecracker-microvm/firecracker/blob/main/docs/vsock.md
func Vsock(conn net.Conn, port uint32) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", port); err != nil {
		return err
	}
	line, err := readLine(conn, lineLimit)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(line), "OK ") {
		return fmt.Errorf("%w: the VMM answered %.40q to CONNECT", ErrProtocol, line)
	}
	return nil
}

// Buffered makes reads byte by byte cheap on what is a file in the guest.
func Buffered(rwc io.ReadWriteCloser) io.ReadWriteCloser {
	return struct {
		io.Reader
		io.WriteCloser
	}{bufio.NewReader(rwc), rwc}
}
