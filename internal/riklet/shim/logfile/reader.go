package logfile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"rik.dev/rik/internal/pause"
)

// Options select what Read returns.
type Options struct {
	Previous   bool // the run before the latest
	Timestamps bool
	Tail       int64     // only the last lines; negative: all
	Since      time.Time // zero: all
	// Follow waits for more until ctx ends or Ended reports that no more will come. Read calls
	// Ended before it looks for more, so that it always reads what was written before the end,
	// even if the log was removed in the meantime.
	Follow bool
	Ended  func() bool
}

// followInterval is the interval of checks of a followed log.
const followInterval = 100 * time.Millisecond

// ErrNoPrevious reports that a container did not run before, or that the log of that run no
// longer exists.
var ErrNoPrevious = errors.New("the container has no log of an earlier run")

// atOnce is the amount of text to collect before a write, because each write is a message to the
// user.
const atOnce = 32 << 10

// Read writes the text of a log to w. A log that does not exist is empty. If lines were dropped
// before they were read, because the log is written faster, it writes a marker line.
func Read(ctx context.Context, dir string, o Options, w io.Writer) error {
	r := &reader{dir: dir, o: o, out: bufio.NewWriterSize(w, atOnce)}
	defer r.close()
	start, err := r.begin()
	if err != nil {
		return err
	}
	if err := r.skipToTail(start); err != nil {
		return err
	}
	for {
		last := !o.Follow || o.Ended == nil || o.Ended()
		err := r.drain(ctx)
		if flushed := r.out.Flush(); err == nil {
			err = flushed
		}
		if err != nil || last {
			return err
		}
		if !pause.For(ctx, followInterval) {
			return nil
		}
	}
}

// reader is a position in a log.
type reader struct {
	dir string
	o   Options
	out *bufio.Writer

	// files are opened when they are seen, in order. The first one is the current file, of which
	// offset bytes are read. An open file stays readable after its name is removed, so the last
	// output of a deleted container can still be read. There are only as many as a log has,
	// which limits the disk space that a slow reader keeps in use.
	files  []*os.File
	offset int64
	at     segment // the newest that was opened, or the position to begin at
	opened bool    // whether at was opened
	chosen bool    // whether at is the beginning of the wanted last lines
	gaps   []bool  // for each file: whether something before it was dropped
	run    int     // the only attempt to read; 0: from at on
	open   bool    // a line that was split into parts has not ended
}

func (r *reader) close() {
	for _, f := range r.files {
		_ = f.Close()
	}
}

// begin returns the segments of the requested run.
func (r *reader) begin() ([]segment, error) {
	found, err := segments(r.dir)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		if r.o.Previous {
			return nil, ErrNoPrevious
		}
		return nil, nil
	}
	attempt := found[len(found)-1].attempt
	if r.o.Previous {
		attempt--
		// Run 0 does not exist, and 0 would mean "every run" below.
		if !slices.ContainsFunc(found, func(s segment) bool { return s.attempt == attempt }) {
			return nil, ErrNoPrevious
		}
	}
	if !r.o.Follow || r.o.Previous {
		r.run = attempt
	}
	r.at = segment{attempt: attempt}
	return slices.DeleteFunc(found, func(s segment) bool { return s.attempt != attempt }), nil
}

// skipToTail moves the position to the beginning of the wanted last lines.
func (r *reader) skipToTail(of []segment) error {
	if r.o.Tail < 0 {
		return nil
	}
	want := r.o.Tail
	for i, s := range slices.Backward(of) {
		ends, err := lineEnds(filepath.Join(r.dir, s.name()))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		if n := int64(len(ends)); want <= n {
			r.at, r.offset, r.chosen = s, 0, true
			if want < n {
				r.offset = ends[n-want-1]
			}
			return nil
		}
		want -= int64(len(ends))
		r.at = of[i]
	}
	return nil
}

// lineEnds returns the offset after each line of the program. The parts of one line count once.
func lineEnds(path string) ([]int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var ends []int64
	var offset int64
	in := bufio.NewReaderSize(f, 64<<10)
	open := false
	for {
		line, err := in.ReadSlice('\n')
		offset += int64(len(line))
		if err != nil {
			if open {
				ends = append(ends, offset)
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return ends, err
		}
		if _, _, full, _ := split(line); full {
			ends, open = append(ends, offset), false
		} else {
			open = true
		}
	}
}

// drain writes everything after the position.
func (r *reader) drain(ctx context.Context) error {
	for ctx.Err() == nil {
		if len(r.files) < 2 {
			if err := r.look(); err != nil {
				return err
			}
		}
		if len(r.files) == 0 {
			return nil
		}
		if r.gaps[0] {
			r.gaps[0] = false
			if err := r.missing(); err != nil {
				return err
			}
		}
		if err := r.segment(); err != nil {
			return err
		}
		if len(r.files) == 1 {
			return nil
		}
		// Its successor existed before the file was read to its end, so the file no longer
		// grows.
		_ = r.files[0].Close()
		r.files, r.gaps, r.offset = r.files[1:], r.gaps[1:], 0
	}
	return nil
}

// look opens the segments created since the last look.
func (r *reader) look() error {
	found, err := segments(r.dir)
	if err != nil {
		return err
	}
	for _, s := range found {
		if s.before(r.at) || (r.opened && s == r.at) || (r.run != 0 && s.attempt != r.run) {
			continue
		}
		f, err := os.Open(filepath.Join(r.dir, s.name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // dropped in the meantime
		}
		if err != nil {
			return err
		}
		if s != r.at && len(r.files) == 0 {
			r.offset = 0 // the position to begin at no longer exists
		}
		r.gaps = append(r.gaps, r.gapBefore(s, found))
		r.files, r.at, r.opened = append(r.files, f), s, true
	}
	return nil
}

// gapBefore reports whether something between the position and a segment was dropped, or may
// have been. The oldest segments are dropped first, so nothing is missing after a position that
// still exists, except the beginning of the next run. Segments dropped before the reading began
// do not count.
func (r *reader) gapBefore(s segment, found []segment) bool {
	switch {
	case !r.opened && !r.chosen, s == r.at:
		return false
	case s.attempt == r.at.attempt:
		return s.number != r.at.number+1 || !r.opened
	default:
		return s.number != 0 || !slices.Contains(found, r.at)
	}
}

// Missing is the marker line for dropped lines.
const Missing = "[rik: lines are missing here: the log was written faster than it was read]"

func (r *reader) missing() error {
	var line []byte
	if r.open {
		line, r.open = append(line, '\n'), false
	}
	if r.o.Timestamps {
		line = append(time.Now().UTC().AppendFormat(line, time.RFC3339Nano), ' ')
	}
	_, err := r.out.Write(append(append(line, Missing...), '\n'))
	return err
}

func (s segment) before(t segment) bool {
	return s.attempt < t.attempt || (s.attempt == t.attempt && s.number < t.number)
}

// segment writes the rest of the current file, complete lines only.
func (r *reader) segment() error {
	if _, err := r.files[0].Seek(r.offset, io.SeekStart); err != nil {
		return err
	}
	in := bufio.NewReaderSize(r.files[0], 64<<10)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.offset += int64(len(line))
		if err := r.emit(line); err != nil {
			return err
		}
	}
}

func (r *reader) emit(line []byte) error {
	stamp, text, full, ok := split(line)
	if !ok {
		return nil
	}
	if !r.o.Since.IsZero() {
		if at, err := time.Parse(time.RFC3339Nano, string(stamp)); err != nil || at.Before(r.o.Since) {
			return nil //nolint:nilerr // a line without a time is not since
		}
	}
	var out []byte
	if r.o.Timestamps && !r.open {
		out = append(append(out, stamp...), ' ')
	}
	out = append(out, text...)
	if r.open = !full; full {
		out = append(out, '\n')
	}
	_, err := r.out.Write(out)
	return err
}

// split parses a stored line.
func split(line []byte) (stamp, text []byte, full, ok bool) {
	parts := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 4)
	if len(parts) != 4 {
		return nil, nil, false, false
	}
	return parts[0], parts[3], string(parts[2]) == "F", true
}
