package guest

import (
	"errors"
	"fmt"
	"strings"
)

// Op is an operation of the protocol.
type Op string

// The operations. Each has a stream of its own.
const (
	OpConfigure Op = "configure" // then the files of its volumes as frames
	OpRun       Op = "run"       // then output as frames, until the exit
	OpStdin     Op = "stdin"     // then frames; its own stream, lest it hide the end of the run's
	OpSignal    Op = "signal"
	OpResize    Op = "resize"
	OpFiles     Op = "files" // then the files as frames
	OpDial      Op = "dial"  // then frames
	OpUsage     Op = "usage"
	OpHealth    Op = "health"
	OpThaw      Op = "thaw"
	OpKeep      Op = "keep"
	OpShutdown  Op = "shutdown"
)

// Request is the first line of a stream.
type Request struct {
	Op       Op        `json:"op"`
	Config   *Config   `json:"config,omitempty"`
	Process  *Process  `json:"process,omitempty"`
	Volume   *Volume   `json:"volume,omitempty"`
	Identity *Identity `json:"identity,omitempty"`
	Run      uint64    `json:"run,omitempty"`   // which, by the answer to OpRun
	Stdin    bool      `json:"stdin,omitempty"` // OpStdin will follow; if not: /dev/null
	Signal   int       `json:"signal,omitempty"`
	Size     Size      `json:"size,omitzero"`
	Port     int32     `json:"port,omitempty"`
}

// FileHeader begins a file of a volume: a frame, followed by its content in others.
type FileHeader struct {
	Volume string `json:"volume"`
	Path   string `json:"path"`
	Mode   uint32 `json:"mode"`
}

// Answer is the line that answers a Request.
type Answer struct {
	Failure *Failure `json:"failure,omitempty"`
	Run     uint64   `json:"run,omitempty"`
	PID     int      `json:"pid,omitempty"`
	Usage   *Usage   `json:"usage,omitempty"`
}

// Kind of a Failure, where the node tells it apart from others.
type Kind string

// The kinds of failures.
const (
	KindNoProgram   Kind = "NoProgram"
	KindNotRunnable Kind = "NotRunnable"
	KindDisk        Kind = "Disk"
)

// Failure is an error on its way from a guest.
type Failure struct {
	Kind Kind   `json:"kind,omitempty"`
	Text string `json:"text"`
}

// maxFailure bounds what a guest may say in an error, which ends up in logs and
// conditions.
const maxFailure = 1024

// NewFailure makes an error fit for the way.
func NewFailure(err error) *Failure {
	f := &Failure{Text: err.Error()}
	switch {
	case errors.Is(err, ErrNoProgram):
		f.Kind = KindNoProgram
	case errors.Is(err, ErrNotRunnable):
		f.Kind = KindNotRunnable
	case errors.Is(err, ErrDisk):
		f.Kind = KindDisk
	}
	if len(f.Text) > maxFailure {
		f.Text = f.Text[:maxFailure]
	}
	return f
}

// Err makes an error of it again. The text is the guest's, quoted where it could hurt.
func (f *Failure) Err() error {
	if f == nil {
		return nil
	}
	text := f.Text
	if len(text) > maxFailure {
		text = text[:maxFailure]
	}
	text = printable(text)
	switch f.Kind {
	case KindNoProgram:
		return fmt.Errorf("%w: %s", ErrNoProgram, without(text, ErrNoProgram))
	case KindNotRunnable:
		return fmt.Errorf("%w: %s", ErrNotRunnable, without(text, ErrNotRunnable))
	case KindDisk:
		return fmt.Errorf("%w: %s", ErrDisk, without(text, ErrDisk))
	}
	return fmt.Errorf("the guest says: %s", text)
}

// without takes away what the error says in front of its text anyway.
func without(text string, err error) string {
	for {
		rest, ok := strings.CutPrefix(text, err.Error()+": ")
		if !ok {
			return text
		}
		text = rest
	}
}

// printable replaces what would move a terminal's cursor or break a line.
func printable(text string) string {
	out := []rune(text)
	for i, r := range out {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			out[i] = '?'
		}
	}
	return string(out)
}
