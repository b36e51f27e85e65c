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

// A serial port has no beginning: it may contain bytes of a session that ended. The node repeats
// "hello NONCE" until the init answers "here NONCE". Then the node sends "go NONCE" once, and
// after the init's "ready NONCE" both begin the session. Both drop earlier data. Neither sends
// anything after its last line, so no part of the greeting gets into the session.
const (
	greeting  = "rik-guest-1 "
	helloLine = greeting + "hello "
	hereLine  = greeting + "here "
	goLine    = greeting + "go "
	readyLine = greeting + "ready "
	// lineLimit is more than the length of any line of the greeting. A longer line is not part
	// of it.
	lineLimit = 128
	// helloInterval is the first pause between hellos. It doubles up to helloTimeout. A port that
	// is not open yet buffers a hello, so few are enough.
	helloInterval = 250 * time.Millisecond
	helloTimeout  = 4 * time.Second
)

// Greet is the node's side of the greeting. It closes conn when ctx ends.
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
	// The nonce must differ between sessions, but it is not secret. crypto/rand would make every
	// instance's supervisor 0.3 MB larger.
	nonce := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	if err := greetUntilAnswered(conn, nonce); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, goLine+nonce+"\n"); err != nil {
		return err
	}
	return await(conn, readyLine+nonce)
}

func greetUntilAnswered(conn net.Conn, nonce string) error {
	here := make(chan error, 1)
	go func() { here <- await(conn, hereLine+nonce) }()
	pause := helloInterval
	for {
		// The leading line feed ends a partial line that may be in the port.
		if err := writeOrClose(conn, "\n"+helloLine+nonce+"\n"); err != nil {
			_ = conn.Close()
			return errors.Join(err, <-here)
		}
		select {
		case err := <-here:
			return err
		case <-time.After(pause):
			pause = min(2*pause, helloTimeout)
		}
	}
}

// writeOrClose writes the text. If the other end does not read, it blocks until conn is closed.
func writeOrClose(conn net.Conn, text string) error {
	_, err := io.WriteString(conn, text)
	return err
}

// await drops all lines before the wanted one.
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

// Answer is the init's side of the greeting. It drops everything until a node greets it.
func Answer(rw io.ReadWriter) error {
	for {
		line, err := greetingLine(rw)
		if err != nil {
			return err
		}
		if nonce, ok := strings.CutPrefix(line, goLine); ok {
			_, err := io.WriteString(rw, readyLine+nonce+"\n")
			return err
		}
		if nonce, ok := strings.CutPrefix(line, helloLine); ok {
			if _, err := io.WriteString(rw, hereLine+nonce+"\n"); err != nil {
				return err
			}
		}
	}
}

// greetingLine reads a line byte by byte, because it must not read data of the session. It
// returns only the beginning of a line that is too long.
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

// Vsock requests a connection to a port of the guest from a VMM that maps vsock to a unix
// socket. Firecracker defines the request:
// https://github.com/firecracker-microvm/firecracker/blob/main/docs/vsock.md
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

// Buffered adds a read buffer, so that reading byte by byte is cheap on a file in the guest.
func Buffered(rwc io.ReadWriteCloser) io.ReadWriteCloser {
	return struct {
		io.Reader
		io.WriteCloser
	}{bufio.NewReader(rwc), rwc}
}
