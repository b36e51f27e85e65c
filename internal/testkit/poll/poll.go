// Package poll waits in tests for what happens by and by.
package poll

import (
	"context"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/interrupt"
)

// A look is followed by a pause of pauseLooks times its own length, or of a part of what
// was waited already, within bounds: on a busy machine the looks of many tests would else
// be most of what it does.
const (
	pauseLooks = 4
	pauseWait  = 20
	shortest   = 25 * time.Millisecond
	longest    = 500 * time.Millisecond
)

// Until calls check until it returns nil. After patience the test fails, with what was
// waited for and the last error that is not the end of the patience itself; at once when
// the tests are told to stop.
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
