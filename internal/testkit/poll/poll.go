// Package poll waits in tests until a condition is met.
package poll

import (
	"context"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/interrupt"
)

// After each check, Until pauses for pauseLooks times the duration of the check, or for a
// fraction of the time waited so far, within limits. Otherwise the checks of many tests would
// use most of a busy machine.
const (
	pauseLooks = 4
	pauseWait  = 20
	shortest   = 25 * time.Millisecond
	longest    = 500 * time.Millisecond
)

// Until calls check until it returns nil. After the timeout the test fails, with the name of the
// condition and the last error that does not come from the timeout itself. It fails at once when
// the tests are interrupted.
func Until(tb testing.TB, timeout time.Duration, what string, check func(ctx context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), timeout)
	defer cancel()
	var last error
	start := time.Now()
	for {
		begin := time.Now()
		err := check(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("waiting until %s: %v", what, last)
		case <-interrupt.Done():
			tb.Fatalf("%v; waiting until %s: %v", interrupt.Cause(), what, last)
		case <-time.After(min(max(pauseLooks*time.Since(begin), time.Since(start)/pauseWait, shortest), longest)):
		}
	}
}
