// Package portstream carries one TCP connection over one WebSocket. A user's tool reaches a port
// of an instance in this way, through the API server.
//
// Binary messages are data. A text message "end" means that its sender sends no more data but
// still reads: TCP's half-close. A text message that begins with "error: " has the reason why
// the connection failed. The server closes the WebSocket normally once both directions have
// ended. A WebSocket that ends in another way was cut, and the received data may be incomplete.
//
// Each connection has its own WebSocket, so that a slow reader does not delay others.
package portstream

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"rik.dev/rik/internal/excerpt"
)

const (
	// Protocol is the WebSocket's subprotocol.
	Protocol = "v1.port.rik.dev"
	// Parameter is the query parameter for the number of the port.
	Parameter = "port"
)

const (
	end         = "end"
	errorPrefix = "error: "
	// maxText limits a text message.
	maxText = 4 << 10
	// maxMessage limits one message of a peer. Data is never buffered as a whole, so this only
	// refuses invalid messages.
	maxMessage = 1 << 20
	// piece is the maximum that Write sends in one message.
	piece = 32 << 10
	// closeTimeout is the timeout for sending the last message.
	closeTimeout = 10 * time.Second
)

// ErrCut reports that the WebSocket was not closed normally. The end of the data may be missing.
var ErrCut = errors.New("the connection was cut off")

// RemoteError is the other side's message about a failure.
type RemoteError struct{ Message string }

// Error returns the other side's message.
func (e *RemoteError) Error() string { return e.Message }

// Stream is one side of the connection. One goroutine may read while another one writes. Close
// may be called at any time.
type Stream struct {
	ws      *websocket.Conn
	message io.Reader // data that is not read to its end
	ended   bool      // the other side sends no more data

	writing sync.Mutex
	closing sync.Once
}

// New takes ownership of a WebSocket with the subprotocol.
func New(ws *websocket.Conn) *Stream {
	ws.SetReadLimit(maxMessage)
	return &Stream{ws: ws}
}

// Read returns the other side's data. It returns [io.EOF] after a normal end, a [RemoteError] if
// the other side reports a failure, and [ErrCut] if the connection was cut.
func (s *Stream) Read(p []byte) (int, error) {
	for {
		if s.ended {
			return 0, io.EOF
		}
		if s.message == nil {
			if err := s.next(); err != nil {
				return 0, err
			}
			continue
		}
		n, err := s.message.Read(p)
		switch {
		case errors.Is(err, io.EOF):
			s.message = nil
			if n > 0 {
				return n, nil
			}
		case err != nil:
			return n, fmt.Errorf("%w: %w", ErrCut, err)
		default:
			return n, nil
		}
	}
}

// next waits for a message.
func (s *Stream) next() error {
	kind, reader, err := s.ws.NextReader()
	if websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		s.ended = true // both directions have ended
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCut, err)
	}
	if kind == websocket.BinaryMessage {
		s.message = reader
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(reader, maxText))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCut, err)
	}
	if why, failed := strings.CutPrefix(string(text), errorPrefix); failed {
		return &RemoteError{why}
	}
	if string(text) != end {
		return fmt.Errorf("%w: unknown message %q", ErrCut, text)
	}
	s.ended = true
	return nil
}

// Wait waits for the end of the connection, after Read has returned io.EOF. It returns nil if
// the connection ended normally.
func (s *Stream) Wait() error {
	for {
		_, reader, err := s.ws.NextReader()
		if websocket.IsCloseError(err, websocket.CloseNormalClosure) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCut, err)
		}
		text, err := io.ReadAll(io.LimitReader(reader, maxText))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCut, err)
		}
		if why, failed := strings.CutPrefix(string(text), errorPrefix); failed {
			return &RemoteError{why}
		}
	}
}

// Write sends data.
func (s *Stream) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n := min(len(p)-done, piece)
		if err := s.send(websocket.BinaryMessage, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return len(p), nil
}

// CloseWrite reports to the other side that no more data follows.
func (s *Stream) CloseWrite() error { return s.send(websocket.TextMessage, []byte(end)) }

// Fail sends the reason why the connection failed, and then calls Finish.
func (s *Stream) Fail(why error) {
	text := errorPrefix + why.Error()
	// An error means that the peer is gone.
	_ = s.send(websocket.TextMessage, []byte(excerpt.Prefix(text, maxText)))
	s.Finish()
}

// Finish sends the end of the connection. A reader must still wait for the other side's answer,
// which confirms that it has received everything. Closing earlier could discard data in transit.
func (s *Stream) Finish() {
	message := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	// The connection ends even if this fails.
	_ = s.ws.WriteControl(websocket.CloseMessage, message, time.Now().Add(closeTimeout))
	_ = s.ws.SetReadDeadline(time.Now().Add(closeTimeout))
}

// Close cuts the connection.
func (s *Stream) Close() (err error) {
	s.closing.Do(func() { err = s.ws.Close() })
	return err
}

func (s *Stream) send(kind int, p []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.ws.WriteMessage(kind, p); err != nil {
		return fmt.Errorf("%w: %w", ErrCut, err)
	}
	return nil
}
