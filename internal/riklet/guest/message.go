package guest

import (
	"errors"
	"fmt"
	"strings"

	"rik.dev/rik/internal/excerpt"
)

// Op is an operation of the protocol.
type Op string

// The operations. Each has its own stream.
const (
	OpConfigure Op = "configure" // then the files of its volumes as frames
	OpRun       Op = "run"       // then output as frames, until the exit
	// OpStdin is followed by frames. It has its own stream, so that it cannot hide the end of the
	// run's stream.
	OpStdin    Op = "stdin"
	OpSignal   Op = "signal"
	OpResize   Op = "resize"
	OpFiles    Op = "files" // then the files as frames
	OpDial     Op = "dial"  // then frames
	OpUsage    Op = "usage"
	OpHealth   Op = "health"
	OpThaw     Op = "thaw"
	OpKeep     Op = "keep"
	OpShutdown Op = "shutdown"
)

// Request is the first line of a stream.
type Request struct {
	Op       Op        `json:"op"`
	Config   *Config   `json:"config,omitempty"`
	Process  *Process  `json:"process,omitempty"`
	Volume   *Volume   `json:"volume,omitempty"`
	Identity *Identity `json:"identity,omitempty"`
	Run      uint64    `json:"run,omitempty"`   // from the answer to OpRun
	Stdin    bool      `json:"stdin,omitempty"` // OpStdin will follow; otherwise /dev/null
	Signal   int       `json:"signal,omitempty"`
	Size     Size      `json:"size,omitzero"`
	Port     int32     `json:"port,omitempty"`
}

// FileHeader is a frame that begins a file of a volume. Frames with its content follow.
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

// Kind is the kind of a Failure that the node must distinguish.
type Kind string

// The kinds of failures.
const (
	KindNoProgram   Kind = "NoProgram"
	KindNotRunnable Kind = "NotRunnable"
	KindDisk        Kind = "Disk"
)

// Failure is an error in a message from a guest.
type Failure struct {
	Kind Kind   `json:"kind,omitempty"`
	Text string `json:"text"`
}

// maxFailure limits the text of a guest's error, which appears in logs and conditions.
const maxFailure = 1024

// NewFailure converts an error to a Failure.
func NewFailure(err error) *Failure {
	f := &Failure{Text: excerpt.Prefix(err.Error(), maxFailure)}
	switch {
	case errors.Is(err, ErrNoProgram):
		f.Kind = KindNoProgram
	case errors.Is(err, ErrNotRunnable):
		f.Kind = KindNotRunnable
	case errors.Is(err, ErrDisk):
		f.Kind = KindDisk
	}
	return f
}

// Err converts the failure back to an error. The text comes from the guest, so special
// characters are replaced.
func (f *Failure) Err() error {
	if f == nil {
		return nil
	}
	text := printable(excerpt.Prefix(f.Text, maxFailure))
	switch f.Kind {
	case KindNoProgram:
		return fmt.Errorf("%w: %s", ErrNoProgram, without(text, ErrNoProgram))
	case KindNotRunnable:
		return fmt.Errorf("%w: %s", ErrNotRunnable, without(text, ErrNotRunnable))
	case KindDisk:
		return fmt.Errorf("%w: %s", ErrDisk, without(text, ErrDisk))
	}
	return fmt.Errorf("the guest reports: %s", text)
}

// without removes the prefix that the wrapping error adds anyway.
func without(text string, err error) string {
	for {
		rest, ok := strings.CutPrefix(text, err.Error()+": ")
		if !ok {
			return text
		}
		text = rest
	}
}

// printable replaces characters that would move a terminal's cursor or break a line.
func printable(text string) string {
	out := []rune(text)
	for i, r := range out {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			out[i] = '?'
		}
	}
	return string(out)
}
