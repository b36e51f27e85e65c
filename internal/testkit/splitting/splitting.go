// Package splitting runs the controller that divides roots, for tests of what looks at
// divisions. It is the real one; clusters are the test's to play.
package splitting

import (
	"context"
	"log/slog"
	"testing"

	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/splitter/controller"
)

// Run divides the roots of a kcp until the test ends. The connection is that of a user
// who may do everything.
func Run(tb testing.TB, config *rest.Config) {
	tb.Helper()
	controller, err := controller.New(controller.Config{Rest: config, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatalf("making the controller that divides: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("running the controller that divides: %v", err)
		}
	})
}
