// Package wire is the format of a microVM's channel. It has the greeting that finds the
// beginning of a session in a stream without one, the multiplexer, and the lines and frames of
// one stream. Both ends use it; neither trusts the other.
//
// A stream has one line of JSON in each direction, the request and the answer. Operations that
// continue then use frames: one byte of kind, four of length, and the content. The end of data
// is a frame, because not every transport has half-closed streams.
package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
)

const (
	// MaxMessage is the maximum size of a line and of a frame, in bytes.
	MaxMessage = 1 << 20
	// Chunk is the amount of a byte stream in one frame. It is small, so that a frame does not
	// delay other streams for long.
	Chunk = 32 << 10
)

// ErrProtocol is returned if the other end violates the protocol.
var ErrProtocol = errors.New("the guest violates the protocol")

// Kind is the kind of a frame.
type Kind byte

// The kinds of frames. Data carries a byte stream that needs no name, and End marks its end.
// Stdin goes to a process, Stdout and Stderr come from it, and Exit is its last frame.
const (
	Data Kind = iota + 1
	End
	Stdin
	Stdout
	Stderr
	Exit
	File
	kinds
)

const headerSize = 5

// WriteLine writes a value as one line of JSON.
func WriteLine(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding a message: %w", err)
	}
	if len(text) >= MaxMessage {
		return fmt.Errorf("a message of %d bytes is too long: the limit is %d", len(text), MaxMessage)
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// ReadLine reads one line of JSON. It reads no byte after it, because those belong to the
// frames.
func ReadLine(r io.Reader, v any) error {
	text, err := readLine(r, MaxMessage)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%w: unexpected JSON: %w", ErrProtocol, err)
	}
	return nil
}

// ReadAhead returns conn with a read buffer. Only one goroutine may read at a time. [ReadLine]
// reads byte by byte, and without the buffer each read would be a system call, or take locks
// that the receiving side waits for.
func ReadAhead(conn net.Conn) net.Conn { return &readAhead{conn, bufio.NewReader(conn)} }

type readAhead struct {
	net.Conn
	reader *bufio.Reader
}

func (r *readAhead) Read(p []byte) (int, error) { return r.reader.Read(p) }

// readLine reads byte by byte, because it must not read data after the line.
func readLine(r io.Reader, limit int) ([]byte, error) {
	var line bytes.Buffer
	var one [1]byte
	for {
		if _, err := io.ReadFull(r, one[:]); err != nil {
			if errors.Is(err, io.EOF) && line.Len() > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if one[0] == '\n' {
			return line.Bytes(), nil
		}
		if line.Len() == limit {
			return nil, fmt.Errorf("%w: a line of more than %d bytes", ErrProtocol, limit)
		}
		line.WriteByte(one[0])
	}
}

// WriteFrame writes one frame with one call.
func WriteFrame(w io.Writer, kind Kind, content []byte) error {
	if len(content) > MaxMessage {
		return fmt.Errorf("a frame of %d bytes is too long: the limit is %d", len(content), MaxMessage)
	}
	frame := make([]byte, headerSize, headerSize+len(content))
	frame[0] = byte(kind)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(content)))
	_, err := w.Write(append(frame, content...))
	return err
}

// Reader reads frames.
type Reader struct {
	r    io.Reader
	left int64
}

// NewReader returns a reader of the frames after the lines.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next returns the kind and length of the next frame. It skips the rest of the previous one. It
// returns io.EOF only between frames.
func (r *Reader) Next() (Kind, int, error) {
	if r.left > 0 {
		if _, err := io.CopyN(io.Discard, r, r.left); err != nil {
			return 0, 0, unexpected(err)
		}
	}
	var header [headerSize]byte
	if _, err := io.ReadFull(r.r, header[:]); err != nil {
		return 0, 0, err
	}
	kind, length := Kind(header[0]), binary.BigEndian.Uint32(header[1:])
	if kind == 0 || kind >= kinds {
		return 0, 0, fmt.Errorf("%w: a frame of unknown kind %d", ErrProtocol, kind)
	}
	if length > MaxMessage {
		return 0, 0, fmt.Errorf("%w: a frame of %d bytes", ErrProtocol, length)
	}
	r.left = int64(length)
	return kind, int(length), nil
}

// Read reads the content of the frame. io.EOF marks its end.
func (r *Reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > r.left {
		p = p[:r.left]
	}
	n, err := r.r.Read(p)
	r.left -= int64(n)
	return n, unexpected(err)
}

// JSON decodes the whole frame as JSON.
func (r *Reader) JSON(v any) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%w: unexpected JSON: %w", ErrProtocol, err)
	}
	return nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// WriteFrameJSON writes a value as a frame of JSON.
func WriteFrameJSON(w io.Writer, kind Kind, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding a frame: %w", err)
	}
	return WriteFrame(w, kind, text)
}

// WriteChunks writes content in as many frames as necessary.
func WriteChunks(w io.Writer, kind Kind, content []byte) error {
	for len(content) > 0 {
		n := min(len(content), Chunk)
		if err := WriteFrame(w, kind, content[:n]); err != nil {
			return err
		}
		content = content[n:]
	}
	return nil
}
