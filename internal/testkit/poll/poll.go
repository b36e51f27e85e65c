// Package poll waits in tests for what happens by and by.
package poll

import (
	"context"
	"testing"
	"time"
)

// interval is short beside what is waited for, and costs little.
const interval = 20 * time.Millisecond

// Until calls check until it returns nil. After patience the test fails, with what was
// waited for and the last error that is not the end of the patience itself.
func Until(tb testing.TB, patience time.Duration, what string, check func(ctx context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last error
	for {
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
		case <-ticker.C:
		}
	}
}
