// Package qmp is a small client of QEMU's machine protocol (JSON lines on a unix socket).
//
// Existing libraries lack what rik needs: a deadline on every step, a limit on every line, a
// check of the process that serves the socket, and no goroutine. QEMU serves one connection of a
// socket at a time while others wait, so a connection is held only for one question.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"rik.dev/rik/internal/riklet/vmm/internal/socket"
)

const (
	// maxLine limits the memory that a compromised VMM can use here. The longest honest answer,
	// query-blockstats of 12 disks, has some 40 kB.
	maxLine = 1 << 20
	// maxEvents limits the number of events skipped while waiting for an answer.
	maxEvents = 1000
)

// ErrProtocol is returned if the peer does not speak QMP.
var ErrProtocol = errors.New("the peer does not speak QMP")

// Error is QEMU's answer to a command that it refused.
type Error struct {
	Command string `json:"-"`
	Class   string `json:"class"`
	Text    string `json:"desc"`
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Command, e.Text) }

// Event is a message that QEMU sends without a command.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// Client is one connection. Only one goroutine may use it at a time.
type Client struct {
	conn   *net.UnixConn
	read   *bufio.Reader
	id     int
	events []Event
}

// Dial connects and does the handshake. If the queue of the socket is full, it waits until ctx
// ends. If the socket does not exist or is not served any more, it returns socket.ErrGone at
// once. The peer must run as uid; any other process behind the socket is not our VMM.
func Dial(ctx context.Context, path string, uid uint32) (*Client, error) {
	conn, err := socket.Connect(ctx, path, uid)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, read: bufio.NewReaderSize(conn, 16<<10)}
	if err := c.greet(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *Client) greet(ctx context.Context) error {
	defer c.until(ctx)()
	var greeting struct {
		QMP json.RawMessage `json:"QMP"`
	}
	line, err := c.line(ctx)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &greeting); err != nil || greeting.QMP == nil {
		return fmt.Errorf("%w: it greeted with %.80q", ErrProtocol, line)
	}
	return c.Execute(ctx, "qmp_capabilities", nil, nil)
}

// Execute runs a command and decodes its result into out, unless that is nil. After an error
// that is not an *Error, the connection is unusable.
func (c *Client) Execute(ctx context.Context, command string, arguments, out any) error {
	defer c.until(ctx)()
	c.id++
	request := struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        int    `json:"id"`
	}{command, arguments, c.id}
	b, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := c.conn.Write(append(b, '\n')); err != nil {
		return c.failure(ctx, err)
	}
	for range maxEvents {
		m, err := c.message(ctx)
		if err != nil {
			return err
		}
		if m.Name != "" {
			c.events = append(c.events, m.Event)
			continue
		}
		return m.answer(command, c.id, out)
	}
	return fmt.Errorf("%w: %d events and no answer to %s", ErrProtocol, maxEvents, command)
}

// Event waits for the next event. It also returns events that arrived before an answer.
func (c *Client) Event(ctx context.Context) (Event, error) {
	if len(c.events) > 0 {
		e := c.events[0]
		c.events = c.events[1:]
		return e, nil
	}
	defer c.until(ctx)()
	m, err := c.message(ctx)
	if err != nil {
		return Event{}, err
	}
	if m.Name == "" {
		return Event{}, fmt.Errorf("%w: it sent an answer without a request", ErrProtocol)
	}
	return m.Event, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// message is any message of QEMU after its greeting.
type message struct {
	Event
	ID     *int            `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *Error          `json:"error"`
}

func (m message) answer(command string, id int, out any) error {
	if m.ID == nil || *m.ID != id {
		return fmt.Errorf("%w: the answer to %s has the wrong number", ErrProtocol, command)
	}
	if m.Error != nil {
		m.Error.Command = command
		return m.Error
	}
	if m.Return == nil {
		return fmt.Errorf("%w: the answer to %s has neither result nor error", ErrProtocol, command)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(m.Return, out); err != nil {
		return fmt.Errorf("%w: the answer to %s: %w", ErrProtocol, command, err)
	}
	return nil
}

func (c *Client) message(ctx context.Context) (message, error) {
	line, err := c.line(ctx)
	if err != nil {
		return message{}, err
	}
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, fmt.Errorf("%w: it sent %.80q", ErrProtocol, line)
	}
	return m, nil
}

// line reads one line of limited length.
func (c *Client) line(ctx context.Context) ([]byte, error) {
	var line []byte
	for {
		part, err := c.read.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, c.failure(ctx, err)
		case len(line) > maxLine:
			return nil, fmt.Errorf("%w: a line is longer than %d bytes", ErrProtocol, maxLine)
		}
	}
}

// failure returns the cause of ctx if the connection failed because ctx ended.
func (c *Client) failure(ctx context.Context, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return fmt.Errorf("waiting for QEMU: %w", context.Cause(ctx))
	}
	return socket.Gone(err)
}

// until makes the connection fail when ctx ends, until the caller calls the returned function.
func (c *Client) until(ctx context.Context) func() {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}
