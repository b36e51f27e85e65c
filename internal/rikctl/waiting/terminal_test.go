package waiting_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"rik.dev/rik/internal/rikctl/waiting"
	"rik.dev/rik/internal/testkit/screen"
)

func TestLineOnATerminal(t *testing.T) {
	s := screen.New(t)
	line := waiting.Begin(t.Context(), s.TTY, waiting.Options{})
	out := line.Above(s.TTY)
	line.Set(waiting.State{Done: 1, Total: 2, What: "instances moved", For: "instance web-1: Terminating"})
	s.Await(t, "1 of 2 instances moved, waiting for instance web-1: Terminating for 1s")
	fmt.Fprintln(out, "instance/web-2 deleted")
	line.Set(waiting.State{Done: 1, Total: 2, What: strings.Repeat("long ", 40)})
	s.Await(t, "1 of 2 long")
	line.End()
	fmt.Fprintln(out, "node/n drained")
	s.Await(t, "node/n drained")
	got := strings.Join(s.Shown(), "|")
	if want := "instance/web-2 deleted|node/n drained|"; got != want {
		t.Errorf("after the end the terminal shows %q, want %q; it got %q", got, want, s.Raw())
	}
}

func TestInterruptLeavesACleanTerminal(t *testing.T) {
	s := screen.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	line := waiting.Begin(ctx, s.TTY, waiting.Options{})
	line.Set(waiting.State{For: "something"})
	s.Await(t, "waiting for something")
	cancel()
	line.End()
	fmt.Fprintln(s.TTY, "$")
	s.Await(t, "$")
	if got, want := strings.Join(s.Shown(), "|"), "$|"; got != want {
		t.Errorf("after an interrupt the terminal shows %q, want %q; it got %q", got, want, s.Raw())
	}
}
