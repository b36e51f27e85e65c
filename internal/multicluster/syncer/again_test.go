package syncer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestAgain tests that the syncer starts again only for a Cluster that was created again, and not at
// once.
func TestAgain(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	synctest.Test(t, func(t *testing.T) {
		began, runs := time.Now(), 0
		err := again(t.Context(), log, func(context.Context) error {
			if runs++; runs <= 2 {
				return fmt.Errorf("run %d: %w", runs, ErrClusterGone)
			}
			return ErrOtherCluster
		})
		if !errors.Is(err, ErrOtherCluster) || runs != 3 || time.Since(began) != 2*againPause {
			t.Errorf("again() = %v after %d runs and %v", err, runs, time.Since(began))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), againPause/2)
		defer cancel()
		if err := again(ctx, log, func(context.Context) error { return ErrClusterGone }); err != nil {
			t.Errorf("again() whose context ends = %v", err)
		}
	})
}
