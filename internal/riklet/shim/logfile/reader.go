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
)

// Options choose what Read gives.
type Options struct {
	Previous   bool // the run before the latest
	Timestamps bool
	Tail       int64     // the last lines only; negative: all
	Since      time.Time // zero: all
	// Follow waits for more until ctx ends or Ended reports that no more will
	// come. Ended is asked before each look for more, so that what was written
	// before the end is always read, even when the log was removed meanwhile.
	Follow bool
	Ended  func() bool
}

// followInterval is how often a followed log is looked at for more.
const followInterval = 100 * time.Millisecond

// ErrNoPrevious says that a container did not run before, or that the log of
// that run is gone.
var ErrNoPrevious = errors.New("there is no log of an earlier run of the container")

// atOnce is how much text is collected before it is written: what carries it elsewhere has a
// price for each piece.
const atOnce = 32 << 10

// Read writes the text of a log to w. A log that does not exist is empty. Where lines were
// dropped before they were read, because the log is written faster, a line says so.
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
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followInterval):
		}
	}
}

// reader is a place in a log.
type reader struct {
	dir string
	o   Options
	out *bufio.Writer

	// files are open from when they were seen, in order: the first is the current one,
	// of which offset bytes are read. They outlive their names, so that what a deleted
	// container said last can still be read; and they are as few as a log has, so that
	// who reads slowly keeps no more than that.
	files  []*os.File
	offset int64
	at     segment // the newest that was opened, or where to begin
	opened bool    // at was
	chosen bool    // at is where the wanted last lines begin
	gaps   []bool  // of each file: something before it was dropped
	run    int     // the only attempt to read; 0: from at on
	open   bool    // a line that was cut into parts has not ended
}

func (r *reader) close() {
	for _, f := range r.files {
		_ = f.Close()
	}
}

// begin finds the segments of the run that is asked for.
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
		// Run 0 does not exist, and would be taken for "every run" below.
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

// skipToTail moves the place to where the wanted last lines begin.
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

// lineEnds gives the offset after each line of the program: parts of one line
// count once.
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

// drain writes everything there is after the place.
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
		// Its successor was there before it was read to its end: it has grown no more.
		_ = r.files[0].Close()
		r.files, r.gaps, r.offset = r.files[1:], r.gaps[1:], 0
	}
	return nil
}

// look opens the segments that came since the last look.
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
			continue // dropped meanwhile
		}
		if err != nil {
			return err
		}
		if s != r.at && len(r.files) == 0 {
			r.offset = 0 // where it was to begin is gone
		}
		r.gaps = append(r.gaps, r.gapBefore(s, found))
		r.files, r.at, r.opened = append(r.files, f), s, true
	}
	return nil
}

// gapBefore tells whether something between the place and a segment was dropped, or may have
// been. The oldest are dropped first: nothing is missing after a place that is still there,
// but the beginning of the next run. What was dropped before the reading began is not missed.
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

// Missing is the line that stands for lines that were dropped.
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

// segment writes the rest of the current file, whole lines only.
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

// split takes a stored line apart.
func split(line []byte) (stamp, text []byte, full, ok bool) {
	parts := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 4)
	if len(parts) != 4 {
		return nil, nil, false, false
	}
	return parts[0], parts[3], string(parts[2]) == "F", true
}
