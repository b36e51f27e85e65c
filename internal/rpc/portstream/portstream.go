// Package portstream carries one TCP connection over one WebSocket, which is how
// a user's tool reaches a port of an instance through the API server.
//
// Binary messages are data. A text message "end" says that its sender sends no
// more data, while it still reads: TCP's half-close. A text message that begins
// with "error: " says why the connection failed. The server ends the WebSocket
// in the normal way once both directions have ended; a WebSocket that ends
// otherwise was cut off, and what arrived may be half of what was meant.
//
// One WebSocket holds one connection, so that a reader who is slow holds up no
// other.
package portstream

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

const (
	// Protocol is the WebSocket's subprotocol.
	Protocol = "v1.port.rik.dev"
	// Parameter of the query holds the number of the port.
	Parameter = "port"
)

const (
	end         = "end"
	errorPrefix = "error: "
	// maxText bounds a text message.
	maxText = 4 << 10
	// maxMessage bounds what a peer may send as one message. Data is never
	// collected, so this only refuses nonsense.
	maxMessage = 1 << 20
	// piece is the most that Write sends as one message.
	piece = 32 << 10
	// goodbye bounds the sending of the last message.
	goodbye = 10 * time.Second
)

// ErrCut says that the WebSocket ended without a word: of what was read, the
// end may be missing.
var ErrCut = errors.New("the connection was cut off")

// RemoteError is what the other side said of a failure.
type RemoteError struct{ Message string }

// Error is the other side's message.
func (e *RemoteError) Error() string { return e.Message }

// Stream is one side of the connection. Reading and writing may go side by side,
// each in one goroutine; Close may be called at any time.
type Stream struct {
	ws      *websocket.Conn
	message io.Reader // of data, not yet read to its end
	ended   bool      // the other side sends no more data

	writing sync.Mutex
	closing sync.Once
}

// New takes over a WebSocket with the subprotocol.
func New(ws *websocket.Conn) *Stream {
	ws.SetReadLimit(maxMessage)
	return &Stream{ws: ws}
}

// Read gives the other side's data: [io.EOF] once that has ended well, a
// [RemoteError] when the other side says so, and [ErrCut] when it vanished.
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
		s.ended = true // both directions are over, this one too
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

// Wait is for a reader that has come to the end of the data. It returns when the
// other side has nothing more to say: nil when the connection ended well.
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

// CloseWrite says that no more data follows.
func (s *Stream) CloseWrite() error { return s.send(websocket.TextMessage, []byte(end)) }

// Fail says why the connection failed, and then what Finish says.
func (s *Stream) Fail(why error) {
	text := errorPrefix + why.Error()
	_ = s.send(websocket.TextMessage, []byte(text[:min(len(text), maxText)])) // whoever is gone needs no reason
	s.Finish()
}

// Finish says that the connection is over. The other side's answer, for which a
// reader is still to wait, tells that it has got everything: closing before
// could throw away what is on its way.
func (s *Stream) Finish() {
	message := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	_ = s.ws.WriteControl(websocket.CloseMessage, message, time.Now().Add(goodbye)) // it is over either way
	_ = s.ws.SetReadDeadline(time.Now().Add(goodbye))
}

// Close cuts the connection off.
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
