// Package logfile writes the output of one container to files of limited size and reads it back.
//
// A log is a directory of segments named <attempt>-<segment>.log. Each line is "<RFC 3339 time>
// <stream> <F|P> <text>". F ends a line of the program. P is a part of a line that was too long,
// or that had not ended when the program did. The supervisor writes and the agent reads, without
// communication between them: a segment grows only until its successor exists.
package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The streams of a line.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// maxLine is the length at which a line is split into parts, the same as in CRI logs.
const maxLine = 16 << 10

// segment is one file of a log.
type segment struct{ attempt, number int }

func (s segment) name() string { return fmt.Sprintf("%d-%06d.log", s.attempt, s.number) }

func parseSegment(name string) (segment, bool) {
	base, ok := strings.CutSuffix(name, ".log")
	a, n, ok2 := strings.Cut(base, "-")
	attempt, err1 := strconv.Atoi(a)
	number, err2 := strconv.Atoi(n)
	return segment{attempt, number}, ok && ok2 && err1 == nil && err2 == nil
}

// segments returns the files of a log in the order in which they were written.
func segments(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []segment
	for _, e := range entries {
		if s, ok := parseSegment(e.Name()); ok {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b segment) int {
		if a.attempt != b.attempt {
			return a.attempt - b.attempt
		}
		return a.number - b.number
	})
	return found, nil
}

// Limits limit a log. The zero value means the defaults.
type Limits struct {
	Bytes int64 // of one segment; default 10 MiB
	Files int   // segments kept of one run; default 3
}

// The default limits of one run's log.
const (
	DefaultBytes = 10 << 20
	DefaultFiles = 3
)

func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = DefaultBytes
	}
	if l.Files <= 0 {
		l.Files = DefaultFiles
	}
	return l
}

// Writer writes the log of one run. Different goroutines may write to its streams.
type Writer struct {
	dir    string
	limits Limits
	now    func() time.Time

	mu      sync.Mutex // guards the fields below, and keeps lines of two streams from mixing
	file    *os.File
	current segment
	size    int64
	lost    error // the last error; a full disk must not block the program
	torn    bool  // the last line was written partially
}

// Create begins the log of a run and removes the logs of runs before the previous one.
func Create(dir string, attempt int, limits Limits) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	w := &Writer{dir: dir, limits: limits.withDefaults(), now: time.Now, current: segment{attempt: attempt}}
	if err := w.prune(func(s segment) bool { return s.attempt < attempt-1 }); err != nil {
		return nil, err
	}
	found, err := segments(dir)
	if err != nil {
		return nil, err
	}
	for _, s := range found {
		if s.attempt == attempt {
			w.current = s // the last one is the newest
		}
	}
	if err := w.openLocked(); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *Writer) prune(drop func(segment) bool) error {
	found, err := segments(w.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range found {
		if drop(s) {
			errs = append(errs, os.Remove(filepath.Join(w.dir, s.name())))
		}
	}
	return errors.Join(errs...)
}

func (w *Writer) openLocked() error {
	f, err := os.OpenFile(filepath.Join(w.dir, w.current.name()), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	w.file, w.size = f, info.Size()
	return nil
}

func (w *Writer) rotateLocked() error {
	if err := w.file.Close(); err != nil {
		return err
	}
	w.file = nil
	w.current.number++
	if err := w.openLocked(); err != nil {
		return err
	}
	return w.prune(func(s segment) bool {
		return s.attempt == w.current.attempt && s.number <= w.current.number-w.limits.Files
	})
}

// line appends one line in a single write, so that a reader sees all of it or nothing.
func (w *Writer) line(stream string, text []byte, full bool) {
	tag := " P "
	if full {
		tag = " F "
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var buf []byte
	if w.torn {
		buf = append(buf, '\n')
	}
	if w.lost != nil {
		buf = w.appendLine(buf, stream, " F ", []byte(Unwritten))
	}
	buf = w.appendLine(buf, stream, tag, text)
	if w.file == nil {
		if w.lost = w.openLocked(); w.lost != nil {
			return
		}
	}
	if w.size > 0 && w.size+int64(len(buf)) > w.limits.Bytes {
		if w.lost = w.rotateLocked(); w.lost != nil {
			return
		}
	}
	n, err := w.file.Write(buf)
	w.size += int64(n)
	w.lost = err
	if n > 0 {
		w.torn = n < len(buf)
	}
}

// Unwritten is the marker line for lines that could not be written, for example on a full disk.
const Unwritten = "[rik: lines are missing here: the log could not be written]"

func (w *Writer) appendLine(buf []byte, stream, tag string, text []byte) []byte {
	buf = w.now().UTC().AppendFormat(buf, time.RFC3339Nano)
	buf = append(append(append(buf, ' '), stream...), tag...)
	return append(append(buf, text...), '\n')
}

// Close ends the log and returns the last write error.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return w.lost
	}
	err := errors.Join(w.lost, w.file.Close())
	w.file = nil
	return err
}

// Stream returns the writer of one stream. Its Write never fails and blocks only for the disk,
// because logging errors must not affect the program.
func (w *Writer) Stream(name string) *Stream { return &Stream{log: w, name: name} }

// Stream splits output into lines.
type Stream struct {
	log  *Writer
	name string
	rest []byte
}

// Write accepts output in pieces of any size.
func (s *Stream) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		switch {
		case i >= 0 && len(s.rest)+i <= maxLine:
			s.log.line(s.name, append(s.rest, p[:i]...), true)
			s.rest, p = s.rest[:0], p[i+1:]
		case i < 0 && len(s.rest)+len(p) <= maxLine:
			s.rest, p = append(s.rest, p...), nil
		default:
			room := maxLine - len(s.rest)
			s.log.line(s.name, append(s.rest, p[:room]...), false)
			s.rest, p = s.rest[:0], p[room:]
		}
	}
	return n, nil
}

// Flush writes an incomplete line.
func (s *Stream) Flush() {
	if len(s.rest) > 0 {
		s.log.line(s.name, s.rest, false)
		s.rest = nil
	}
}
