package interrupt_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/interrupt"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestInterrupt stops a process in which a test waits forever. The test must fail at once,
// report the reason, and remove what it created.
func TestInterrupt(t *testing.T) {
	const waits = "RIK_E2E_WAITS"
	never := errors.New("it never comes")
	ways := map[string]func(){
		"Eventually": func() { rikcluster.Eventually(t, time.Hour, func() error { return never }) },
		"poll.Until": func() { poll.Until(t, time.Hour, "it comes", func(context.Context) error { return never }) },
	}
	if wait := ways[os.Getenv(waits)]; wait != nil {
		t.Cleanup(func() { t.Log("removed what it made") })
		interrupt.Handle()
		if err := interrupt.Cause(); err != nil {
			t.Errorf("before the signal: %v", err)
		}
		t.Log("waiting")
		wait()
		return
	}
	for way := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInterrupt$", "-test.v")
			cmd.Env = append(os.Environ(), waits+"="+way)
			var out output
			cmd.Stdout, cmd.Stderr = &out, &out
			out.then, out.do = "waiting", func() { _ = cmd.Process.Signal(syscall.SIGINT) }
			err := cmd.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("it ended with %v, want a test's failure", err)
			}
			for _, want := range []string{"signal to stop: interrupt", "it never comes", "removed what it made"} {
				if !strings.Contains(out.said.String(), want) {
					t.Errorf("it does not say %q, but\n%s", want, out.said.String())
				}
			}
		})
	}
}

// output calls a function once a word was written.
type output struct {
	said bytes.Buffer
	then string
	do   func()
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.said.Write(p)
	if o.do != nil && strings.Contains(o.said.String(), o.then) {
		o.do()
		o.do = nil
	}
	return n, err
}
