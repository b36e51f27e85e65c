// Package waiting shows what a command waits for: one line that changes on a terminal, and lines
// at intervals elsewhere.
//
// A Line is for a wait with one state at a time. On a terminal it has up to three rows. It shows nothing before Options.After, so that
// short waits look like none, and removes itself from the terminal at its end.
package waiting

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-runewidth"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"k8s.io/cli-runtime/pkg/printers"

	"rik.dev/rik/internal/rikctl/progress"
)

const (
	// tick is the interval of decisions whether to show something.
	tick = 200 * time.Millisecond
	// changed is the shortest interval between two lines outside a terminal.
	changed = time.Second
	// reminded is the interval of lines about a state that does not change.
	reminded = 10 * time.Second
	// After is the time after which a command that prints nothing by itself says what it waits for.
	After = time.Second
)

// State is what a command waits for.
type State struct {
	// Done of Total things are done, such as "instances moved". Total is 0 if there is no count.
	Done, Total int
	// What names the things, or is the whole state if Total is 0.
	What string
	// For is what holds it up, such as "instance web-abc: Terminating". It may be empty.
	For string
	// Since is when For began. If it is zero, the Line measures how long it has seen For.
	Since time.Time
}

// Text returns the state without a duration.
func (s State) Text() string {
	var parts []string
	switch {
	case s.Total > 0:
		parts = append(parts, fmt.Sprintf("%d of %d %s", s.Done, s.Total, s.What))
	case s.What != "":
		parts = append(parts, s.What)
	}
	if s.For != "" {
		parts = append(parts, "waiting for "+s.For)
	}
	return printers.EscapeTerminal(strings.Join(strings.Fields(strings.Join(parts, ", ")), " "))
}

// At returns the state with its duration.
func (s State) At(now time.Time) string {
	took := now.Sub(s.Since).Truncate(time.Second)
	if s.Since.IsZero() || took < time.Second {
		return s.Text()
	}
	return s.Text() + " for " + took.String()
}

// Options say how a Line shows its state.
type Options struct {
	// Quiet shows nothing: a program reads the output of the command.
	Quiet bool
	// After is the time before the first line.
	After time.Duration
}

// Line shows one State at a time. Its methods are safe for concurrent use.
type Line struct {
	out      io.Writer
	after    time.Duration
	begun    time.Time
	terminal bool
	stop     context.CancelFunc
	group    sync.WaitGroup

	mu    sync.Mutex
	state State
	last  printed
	bars  *mpb.Progress // nil: not shown on a terminal
	bar   *mpb.Bar
	ended bool
}

// printed is the last line outside a terminal.
type printed struct {
	text string // without the duration
	at   time.Time
}

// Begin returns a Line that shows its state on out until End, or until ctx ends.
func Begin(ctx context.Context, out io.Writer, o Options) *Line {
	ctx, stop := context.WithCancel(ctx)
	l := &Line{out: out, after: o.After, begun: time.Now(), terminal: IsTerminal(out), stop: stop}
	if o.Quiet {
		l.ended = true
		return l
	}
	l.group.Go(func() { l.run(ctx) })
	return l
}

// Shows reports whether the Line has something to show: it is not quiet and has not ended.
func (l *Line) Shows() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.ended
}

// IsTerminal reports whether a stream is a terminal that can move its cursor.
func IsTerminal(out io.Writer) bool {
	return progress.IsTerminal(out) && os.Getenv("TERM") != "dumb"
}

// run shows the state until ctx ends.
func (l *Line) run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			l.remove()
			return
		case now := <-ticker.C:
			l.mu.Lock()
			l.show(now)
			l.mu.Unlock()
		}
	}
}

// Set changes the state. It has no effect after End.
func (l *Line) Set(s State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if s.Since.IsZero() {
		s.Since = now
		if s.For == l.state.For && (s.For != "" || s.What == l.state.What) && !l.state.Since.IsZero() {
			s.Since = l.state.Since
		}
	}
	l.state = s
	l.show(now)
}

// show prints the state if it is due. The caller holds the lock.
func (l *Line) show(now time.Time) {
	text := l.state.Text()
	switch {
	case l.ended || text == "":
	case l.terminal:
		if l.bars == nil && now.Sub(l.begun) >= l.after {
			l.bars = mpb.New(mpb.WithOutput(l.out))
			l.bar = l.bars.New(0, mpb.NopStyle(), mpb.BarRemoveOnComplete(), mpb.PrependDecorators(decor.Any(l.first)), mpb.BarBtmExtender(l.row(1), l.row(2)))
		}
	case due(l.last, text, now, l.begun.Add(l.after)):
		l.last = printed{text: text, at: now}
		_, _ = fmt.Fprintln(l.out, l.state.At(now))
	}
}

// maxRows is how many rows of the terminal a state may have.
const maxRows = 3

// rows returns the state on a terminal of a width.
func (l *Line) rows(width int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return wrap(l.state.At(time.Now()), width)
}

// first returns the first row on the terminal.
func (l *Line) first(s decor.Statistics) string {
	return strings.Join(l.rows(s.AvailableWidth)[:1], "")
}

// row returns what writes a further row on the terminal. It writes nothing if the state has no such row.
func (l *Line) row(n int) mpb.BarFiller {
	return mpb.BarFillerFunc(func(out io.Writer, s decor.Statistics) error {
		rows := l.rows(s.AvailableWidth)
		if n >= len(rows) {
			return nil
		}
		_, err := io.WriteString(out, rows[n]+"\n")
		return err
	})
}

// wrap splits a text at spaces into at least one and at most maxRows rows of a width. What does not
// fit is left out of the last one.
func wrap(text string, width int) []string {
	rows := []string{""}
	for _, word := range strings.Fields(text) {
		last := &rows[len(rows)-1]
		switch {
		case *last == "":
			*last = word
		case len(rows) == maxRows || runewidth.StringWidth(*last)+1+runewidth.StringWidth(word) <= width:
			*last += " " + word
		default:
			rows = append(rows, word)
		}
	}
	for i, row := range rows {
		rows[i] = runewidth.Truncate(row, width, "…")
	}
	return rows
}

// due reports whether to print a line with a text. first is the time of the first line.
func due(last printed, text string, now, first time.Time) bool {
	switch {
	case last.text == "":
		return !now.Before(first)
	case last.text != text:
		return now.Sub(last.at) >= changed
	}
	return now.Sub(last.at) >= reminded
}

// Above returns a writer for other lines of the command. On the terminal of the Line they appear
// above it. Each write must be one or more whole lines.
func (l *Line) Above(out io.Writer) io.Writer {
	if !l.terminal || !IsTerminal(out) {
		return out
	}
	return above{l, out}
}

// above writes to the terminal of a line.
type above struct {
	line *Line
	out  io.Writer
}

// Write implements io.Writer.
func (a above) Write(text []byte) (int, error) {
	a.line.mu.Lock()
	bars := a.line.bars
	a.line.mu.Unlock()
	if bars == nil {
		return a.out.Write(text)
	}
	n, err := bars.Write(text)
	if errors.As(err, new(mpb.ErrDone[*mpb.Progress])) {
		return a.out.Write(text)
	}
	return n, err
}

// End removes the line from the terminal, and returns when nothing more is printed. It may be
// called more than once.
func (l *Line) End() {
	l.stop()
	l.group.Wait()
}

// remove ends the display.
func (l *Line) remove() {
	l.mu.Lock()
	l.ended = true
	bars, bar := l.bars, l.bar
	l.mu.Unlock() // the last rendering reads the state
	if bars == nil {
		return
	}
	bar.Abort(true)
	bars.Wait()
	l.mu.Lock()
	l.bars = nil
	l.mu.Unlock()
}
