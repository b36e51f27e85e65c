package install

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"rik.dev/rik/internal/pause"
)

const (
	// stateRead is the interval of looks at a service that starts. It is shorter than the RestartSec
	// of the units, so that no end of a service is missed.
	stateRead = 300 * time.Millisecond
	// stateRepeated is the interval of lines about a state that does not change.
	stateRepeated = 10 * time.Second
)

// UnitState is the state of a service.
type UnitState struct {
	// Invocation identifies the run of the service. It is empty if the service never ran.
	Invocation string
	// Active and Sub are the two states of systemd, such as "activating" and "start".
	Active, Sub string
	// Text is the status that the service reports of itself.
	Text string
}

// ended reports whether the service ended. It may start again.
func (s UnitState) ended() bool {
	return s.Active == "failed" || strings.HasPrefix(s.Sub, "auto-restart")
}

// String says what the service does.
func (s UnitState) String() string { return cmp.Or(s.Text, s.Active) }

// await waits until a service has started in a newer run than before, and as far as o.Joined. It
// says what it waits for. ErrNotReady is the error at the timeout.
func (o *Options) await(ctx context.Context, host Host, unit, before string) error {
	begun := time.Now()
	var said string
	var at time.Time
	for {
		s, err := host.State(ctx, unit)
		if err != nil {
			return err
		}
		isNew := s.Invocation != before
		switch {
		case isNew && s.ended():
			return fmt.Errorf("%s ended during its start; see: journalctl -u %s -n 50", unit, unit)
		case isNew && s.Active == "active" && strings.HasPrefix(s.Text, o.Joined):
			return nil
		}
		took := time.Since(begun).Round(time.Second)
		if o.Timeout > 0 && took >= o.Timeout {
			return fmt.Errorf("%w after %s: %s: %s", ErrNotReady, took, unit, s)
		}
		if text := s.String(); isNew && (text != said || time.Since(at) >= stateRepeated) {
			said, at = text, time.Now()
			o.say("waiting for %s for %s: %s", unit, took, text)
		}
		if !pause.For(ctx, stateRead) {
			return fmt.Errorf("waiting for %s: %w", unit, context.Cause(ctx))
		}
	}
}
