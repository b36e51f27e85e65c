// Package progress shows how far tasks are that take longer than a moment: as bars on a terminal, and
// as lines elsewhere.
package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// interval is the interval of the lines of a task.
const interval = 5 * time.Second

// Display shows tasks. It is safe for concurrent use.
type Display struct {
	out  io.Writer
	bars *mpb.Progress // nil: lines
	now  func() time.Time

	mu sync.Mutex // of out, for lines
}

// New returns a display on out. Quiet shows nothing.
func New(out io.Writer, quiet bool) *Display {
	d := &Display{out: out, now: time.Now}
	switch {
	case quiet:
		d.out = io.Discard
	case IsTerminal(out):
		d.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(40))
	}
	return d
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Close ends the display. All tasks must have ended.
func (d *Display) Close() {
	if d.bars != nil {
		d.bars.Wait()
	}
}

// State is how far a task is.
type State struct {
	// Text says what is being done.
	Text string
	// Bytes are done, of Total. Total is 0 if it is not known.
	Bytes, Total int64
}

// String says it to people.
func (s State) String() string {
	switch {
	case s.Total > 0:
		return fmt.Sprintf("%s: %s of %s", s.Text, Bytes(s.Bytes), Bytes(s.Total))
	case s.Bytes > 0:
		return fmt.Sprintf("%s: %s", s.Text, Bytes(s.Bytes))
	}
	return s.Text
}

// Bytes formats a number of bytes.
func Bytes(n int64) string {
	const unit = 1 << 10
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, name := float64(n)/unit, 0
	for value >= unit && name < 3 {
		value, name = value/unit, name+1
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGT"[name])
}

// Task is one piece of work.
type Task struct {
	display *Display
	name    string
	bar     *mpb.Bar

	mu    sync.Mutex
	state State
	said  time.Time // the last line
	text  string    // the text of the last line
	ended bool
}

// Task adds a task. End must be called.
func (d *Display) Task(name string) *Task {
	t := &Task{display: d, name: name}
	if d.bars != nil {
		t.bar = d.bars.New(0, mpb.BarStyle().Lbound("[").Rbound("]").Filler("=").Tip(">").Padding(" "),
			mpb.PrependDecorators(decor.Name(name, decor.WC{C: decor.DSyncWidthR | decor.DextraSpace})),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return t.State().String() })),
			mpb.BarRemoveOnComplete(),
		)
	}
	return t
}

// State returns the state that was set last.
func (t *Task) State() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}

// Set shows a new state. It has no effect after End.
func (t *Task) Set(s State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	t.state = s
	if t.bar != nil {
		// A total that is not known leaves the bar empty.
		t.bar.SetTotal(max(s.Total, s.Bytes+1), false)
		if s.Total > 0 {
			t.bar.SetCurrent(min(s.Bytes, s.Total))
		}
		return
	}
	now := t.display.now()
	if s.Text == t.text && now.Sub(t.said) < interval {
		return
	}
	t.said, t.text = now, s.Text
	t.display.line(t.name, s.String())
}

// End ends the task with a last line, or without one if text is empty.
func (t *Task) End(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	t.ended = true
	if t.bar != nil {
		t.mu.Unlock() // the bar reads the state
		t.bar.Abort(true)
		t.bar.Wait()
		t.mu.Lock()
	}
	switch {
	case text == "":
	case t.bar != nil:
		_, _ = fmt.Fprintf(t.display.bars, "%s: %s\n", t.name, text)
	default:
		t.display.line(t.name, text)
	}
}

func (d *Display) line(name, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, _ = fmt.Fprintf(d.out, "%s: %s\n", name, text)
}
