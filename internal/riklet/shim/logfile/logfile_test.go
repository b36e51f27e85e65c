package logfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func create(t testing.TB, dir string, attempt int, limits Limits) *Writer {
	t.Helper()
	w, err := Create(dir, attempt, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func read(t testing.TB, dir string, o Options) string {
	t.Helper()
	var out bytes.Buffer
	if err := Read(context.Background(), dir, o, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestWriteAndRead(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	dir := t.TempDir()
	for attempt, text := range []string{"oldest\n", "older\n", "one\ntwo\nthree\nhalf"} {
		w := create(t, dir, attempt+1, Limits{})
		w.now = func() time.Time { return at.Add(time.Duration(attempt) * time.Hour) }
		s := w.Stream(Stdout)
		for _, b := range []byte(text) { // one byte at a time
			_, _ = s.Write([]byte{b})
		}
		s.Flush()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := os.ReadFile(filepath.Join(dir, "3-000000.log"))
	if err != nil || !strings.HasPrefix(string(stored), "2026-01-02T05:04:05.000000678Z stdout F one\n") ||
		!strings.HasSuffix(string(stored), " stdout P half\n") {
		t.Errorf("stored %q, %v", stored, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "1-000000.log")); !os.IsNotExist(err) {
		t.Errorf("the run before the previous one is still there: %v", err)
	}
	tests := map[string]struct {
		options Options
		want    string
	}{
		"all":               {Options{Tail: -1}, "one\ntwo\nthree\nhalf"},
		"tail":              {Options{Tail: 2}, "three\nhalf"},
		"tail of nothing":   {Options{Tail: 0}, ""},
		"tail beyond":       {Options{Tail: 100}, "one\ntwo\nthree\nhalf"},
		"previous":          {Options{Tail: -1, Previous: true}, "older\n"},
		"since before":      {Options{Tail: -1, Since: at}, "one\ntwo\nthree\nhalf"},
		"since after":       {Options{Tail: -1, Since: at.Add(24 * time.Hour)}, ""},
		"timestamps":        {Options{Tail: -1, Previous: true, Timestamps: true}, "2026-01-02T04:04:05.000000678Z older\n"},
		"follow what ended": {Options{Tail: -1, Follow: true, Ended: func() bool { return true }}, "one\ntwo\nthree\nhalf"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, read(t, dir, tc.options)); diff != "" {
				t.Errorf("Read() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoPreviousRun(t *testing.T) {
	t.Parallel()
	empty, first := t.TempDir(), t.TempDir()
	w := create(t, first, 1, Limits{})
	if _, err := w.Stream(Stdout).Write([]byte("of the first run\n")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{empty, first} {
		var out strings.Builder
		err := Read(t.Context(), dir, Options{Tail: -1, Previous: true}, &out)
		if !errors.Is(err, ErrNoPrevious) || out.Len() > 0 {
			t.Errorf("Read() of the run before the first = %v and %q, want ErrNoPrevious", err, out.String())
		}
	}
}

func TestRotationBoundsTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, 1, Limits{Bytes: 1000, Files: 3})
	s := w.Stream(Stderr)
	for i := range 500 {
		fmt.Fprintf(s, "line %04d\n", i)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d files, %v; want 3", len(entries), err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Size() > 1000 {
			t.Errorf("%s has %d bytes, %v; want at most 1000", e.Name(), info.Size(), err)
		}
	}
	if got := read(t, dir, Options{Tail: 30}); !strings.HasSuffix(got, "line 0499\n") || strings.Count(got, "\n") != 30 {
		t.Errorf("the last 30 lines over the files are %q", got)
	}
}

func TestLongLineIsOneLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, 1, Limits{})
	text := strings.Repeat("x", 3*maxLine+7) + "\nnext\n"
	_, _ = w.Stream(Stdout).Write([]byte(text))
	if got := read(t, dir, Options{Tail: -1}); got != text {
		t.Errorf("read %d bytes, want the %d written", len(got), len(text))
	}
	if got := read(t, dir, Options{Tail: 1}); got != "next\n" {
		t.Errorf("last line = %q", got)
	}
}

func TestAnySplitGivesTheSameText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "riklog")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		w, err := Create(dir, 1, Limits{Files: 1000})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		s := w.Stream(Stdout)
		var want bytes.Buffer
		for range rapid.IntRange(0, 20).Draw(t, "pieces") {
			piece := []byte(rapid.StringMatching(`[a-z \n]{0,40}`).Draw(t, "piece"))
			want.Write(piece)
			_, _ = s.Write(piece)
		}
		s.Flush()
		var got bytes.Buffer
		if err := Read(context.Background(), dir, Options{Tail: -1}, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.String(), got.String()); diff != "" {
			t.Fatalf("Read() (-want +got):\n%s", diff)
		}
	})
}

// signaled sends on a channel for each write, so that a test need not sleep.
type signaled struct {
	bytes.Buffer
	wrote chan string
}

func (s *signaled) Write(p []byte) (int, error) {
	s.wrote <- string(p)
	return len(p), nil
}

func TestFollowGoesOnOverRotationAndRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := create(t, dir, 1, Limits{Bytes: 40, Files: 100})
	stream := first.Stream(Stdout)
	fmt.Fprintln(stream, "a")
	var ended atomic.Bool
	out := &signaled{wrote: make(chan string)}
	done := make(chan error, 1)
	go func() {
		done <- Read(t.Context(), dir, Options{Tail: -1, Follow: true, Ended: ended.Load}, out)
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-out.wrote:
			if got != want {
				t.Fatalf("followed %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nothing came, want %q", want)
		}
	}
	expect("a\n")
	fmt.Fprintln(stream, "b")
	expect("b\n")
	second := create(t, dir, 2, Limits{})
	fmt.Fprintln(second.Stream(Stdout), "c")
	expect("c\n")
	ended.Store(true)
	if err := <-done; err != nil {
		t.Errorf("Read() = %v", err)
	}
}

// A run that was suspended to disk and restored continues its log.
func TestRunContinuesInItsLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	limits := Limits{Bytes: 100, Files: 3}
	for round := range 4 {
		w := create(t, dir, 2, limits)
		s := w.Stream(Stdout)
		for i := range 3 {
			_, _ = fmt.Fprintf(s, "line %d of %d\n", i, round)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	text := read(t, dir, Options{Tail: -1})
	all := "line 0 of 0\nline 1 of 0\nline 2 of 0\nline 0 of 1\nline 1 of 1\nline 2 of 1\nline 0 of 2\nline 1 of 2\nline 2 of 2\nline 0 of 3\nline 1 of 3\nline 2 of 3\n"
	if text == "" || !strings.HasSuffix(all, text) {
		t.Errorf("the log is %q, want the end of %q", text, all)
	}
	found, err := segments(dir)
	if err != nil || len(found) != limits.Files {
		t.Errorf("segments = %v, %v, want %d", found, err, limits.Files)
	}
	for _, s := range found {
		if info, err := os.Stat(filepath.Join(dir, s.name())); err != nil || info.Size() > limits.Bytes {
			t.Errorf("%s has %v bytes, %v, want at most %d", s.name(), info, err, limits.Bytes)
		}
	}
}

// Deleting an instance removes its logs. A reader that follows one still gets everything written
// before.
func TestFollowReadsRemovedFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	stream := create(t, dir, 1, Limits{}).Stream(Stdout)
	fmt.Fprintln(stream, "a")
	looks := 0
	ended := func() bool {
		if looks++; looks == 1 {
			return false
		}
		fmt.Fprintln(stream, "last words")
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		return true
	}
	if got := read(t, dir, Options{Tail: -1, Follow: true, Ended: ended}); got != "a\nlast words\n" {
		t.Errorf("followed %q", got)
	}
}

// remover removes a log when it receives the first line.
type remover struct {
	bytes.Buffer
	dir string
}

func (r *remover) Write(p []byte) (int, error) {
	_, _ = r.Buffer.Write(p)
	return len(p), os.RemoveAll(r.dir)
}

// A slow reader gets all that existed when it began to read.
func TestReadGoesOnWithoutTheNames(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	stream := create(t, dir, 1, Limits{Bytes: 50, Files: 3}).Stream(Stdout)
	for _, line := range []string{"in one file", "in another", "in a third"} {
		fmt.Fprintln(stream, line)
	}
	out := &remover{dir: dir}
	if err := Read(t.Context(), dir, Options{Tail: -1}, out); err != nil {
		t.Fatal(err)
	}
	if want := "in one file\nin another\nin a third\n"; out.String() != want {
		t.Errorf("read %q, want %q", out.String(), want)
	}
}

// slow is a reader of a log. Before each piece it lets the program write much more.
type slow struct {
	bytes.Buffer
	pieces int
	before func(piece int)
}

func (s *slow) Write(p []byte) (int, error) {
	s.pieces++
	if s.before != nil {
		s.before(s.pieces)
	}
	return s.Buffer.Write(p)
}

// A reader that is slower than the writer gets a marker line at each place where lines are
// missing.
func TestMissingLinesAreMarked(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ runs, lines int }{"of one run": {1, 500}, "of two runs": {2, 500}, "of several runs": {4, 500}, "of short runs": {4, 30}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, n := t.TempDir(), 0
			var w *Writer
			write := func(attempt, lines int) {
				if attempt > 0 {
					w = create(t, dir, attempt, Limits{Bytes: 1000, Files: 2})
				}
				s := w.Stream(Stdout)
				for range lines {
					fmt.Fprintf(s, "line %06d\n", n)
					n++
				}
			}
			write(1, 10)
			out := &slow{before: func(piece int) {
				if piece > 1 {
					return
				}
				write(0, tc.lines)
				for attempt := 2; attempt <= tc.runs; attempt++ {
					write(attempt, tc.lines)
				}
			}}
			looks := 0
			o := Options{Tail: -1, Follow: true, Ended: func() bool { looks++; return looks > 3 }}
			if err := Read(t.Context(), dir, o, out); err != nil {
				t.Fatal(err)
			}
			marked := 0
			next := 0
			gap := false
			for line := range strings.Lines(out.String()) {
				if line == Missing+"\n" {
					marked++
					gap = true
					continue
				}
				var got int
				if _, err := fmt.Sscanf(line, "line %d", &got); err != nil {
					t.Fatalf("the line %q: %v", line, err)
				}
				if got != next && !gap {
					t.Fatalf("after line %d comes %d, without a marker for missing lines", next-1, got)
				}
				next, gap = got+1, false
			}
			if next != n || marked == 0 {
				t.Errorf("the last line is %d of %d, %d gaps are marked", next-1, n-1, marked)
			}
		})
	}
}

// Lines dropped before the reading began are not reported as missing.
func TestRotationIsNoGap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := create(t, dir, 1, Limits{Bytes: 1000, Files: 2}).Stream(Stdout)
	for i := range 500 {
		fmt.Fprintf(s, "line %06d\n", i)
	}
	for _, tail := range []int64{-1, 3, 20, 1000} {
		if got := read(t, dir, Options{Tail: tail}); strings.Contains(got, Missing) {
			t.Errorf("tail %d: %q", tail, got)
		}
	}
}

// Lines are passed on together, because each write becomes a message to the user.
func TestLinesArePassedOnTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := create(t, dir, 1, Limits{}).Stream(Stdout)
	const lines = 20_000
	for i := range lines {
		fmt.Fprintf(s, "line %06d of a program\n", i)
	}
	out := &slow{}
	if err := Read(t.Context(), dir, Options{Tail: -1}, out); err != nil {
		t.Fatal(err)
	}
	if want := out.Len()/atOnce + 1; strings.Count(out.String(), "\n") != lines || out.pieces > want {
		t.Errorf("%d lines of %d bytes came in %d pieces, want at most %d", strings.Count(out.String(), "\n"), out.Len(), out.pieces, want)
	}
}

// Lines that could not be written are reported by a marker line.
func TestUnwrittenLinesAreMarked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := create(t, dir, 1, Limits{})
	s := w.Stream(Stdout)
	fmt.Fprintln(s, "first")
	good := w.file
	bad, err := os.Open(good.Name()) // open for reading only
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	w.file = bad
	fmt.Fprintln(s, "lost")
	fmt.Fprintln(s, "lost too")
	w.file = good
	if _, err := good.WriteString("2026-01-01T00:00:00Z stdout F half of a li"); err != nil {
		t.Fatal(err)
	}
	w.torn = true
	fmt.Fprintln(s, "second")
	fmt.Fprintln(s, "third")
	want := "first\nhalf of a li\n" + Unwritten + "\nsecond\nthird\n"
	if diff := cmp.Diff(want, read(t, dir, Options{Tail: -1})); diff != "" {
		t.Errorf("Read() (-want +got):\n%s", diff)
	}
}
