package syncer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"rik.dev/rik/internal/pause"
)

// againPause is the pause before the syncer starts again for a Cluster that was created again.
const againPause = time.Second

// RunAgain is Run for a program that has only this syncer. It starts the syncer again when the
// Cluster upstream was created again, because the old syncer belongs to the deleted Cluster.
func (s *Syncer) RunAgain(ctx context.Context) error { return again(ctx, s.config.Logger, s.Run) }

func again(ctx context.Context, log *slog.Logger, run func(context.Context) error) error {
	for {
		err := run(ctx)
		if !errors.Is(err, ErrClusterGone) {
			return err
		}
		log.Warn("starting the syncer again", "err", err)
		if !pause.For(ctx, againPause) {
			return nil
		}
	}
}
