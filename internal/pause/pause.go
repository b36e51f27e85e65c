// Package pause waits for a time, unless a context ends first.
package pause

import (
	"context"
	"time"
)

// For waits for d. It returns false as soon as ctx ends, and in every case if ctx has ended.
func For(ctx context.Context, d time.Duration) bool { return ForOr(ctx, d, nil) }

// ForOr waits for d, or until it receives from early. It returns false as soon as ctx ends, and
// in every case if ctx has ended. A nil early never ends the wait.
func ForOr(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-early:
	}
	return ctx.Err() == nil
}
