// Package splitting runs the real splitter, for tests that look at its results. The test
// simulates the clusters.
package splitting

import (
	"context"
	"log/slog"
	"testing"

	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/splitter/controller"
)

// Run splits the roots of a kcp until the test ends. config must be that of a user with all
// permissions.
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
