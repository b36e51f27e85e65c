package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"

	"rik.dev/rik/internal/excerpt"
)

// The exit codes of a launch that did not start its program. The first two are the same as a
// shell's.
const (
	CodeNotFound    = 127
	CodeNotRunnable = 126
	CodeFailed      = 125
)

// Failure is the reason why a program was not started. It wraps Errno, if there is one.
type Failure struct {
	// Code is CodeNotFound or CodeNotRunnable if the program is the cause.
	Code  int           `json:"code"`
	Errno syscall.Errno `json:"errno,omitempty"`
	Text  string        `json:"text"`
}

func (f *Failure) Error() string { return f.Text }

func (f *Failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

// failureOf converts any error to a failure.
func failureOf(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	f = &Failure{Code: CodeFailed, Text: err.Error()}
	_ = errors.As(err, &f.Errno)
	return f
}

// maxFailure limits the size of the message.
const maxFailure = 16 << 10

// ReadFailure reads the other end of ErrorFD. It returns nil when the program runs, and a
// *Failure if it was not started.
func ReadFailure(r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, maxFailure))
	if err != nil {
		return fmt.Errorf("waiting for the program to start: %w", err)
	}
	if len(data) == 0 {
		return nil
	}
	f := &Failure{}
	if err := json.Unmarshal(data, f); err != nil || f.Text == "" {
		return fmt.Errorf("the program was not started, and the reason cannot be read: %q", data)
	}
	return f
}

func (f *Failure) write(w io.Writer) error {
	sent := *f
	sent.Text = excerpt.Prefix(sent.Text, maxFailure/8) // escapes may lengthen it
	return json.NewEncoder(w).Encode(sent)
}
