package runtimelog_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"rik.dev/rik/internal/reconcile/runtimelog"
)

// TestSet checks that concurrent calls do not race, and that exactly one of the loggers is used.
func TestSet(t *testing.T) {
	t.Parallel()
	outs := make([]bytes.Buffer, 8)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range outs {
		all.Go(func() {
			<-start
			runtimelog.Set(slog.New(slog.NewTextHandler(&outs[i], nil)))
		})
	}
	close(start)
	all.Wait()
	log.Log.Info("said once")
	said := 0
	for i := range outs {
		said += strings.Count(outs[i].String(), "said once")
	}
	if said != 1 {
		t.Errorf("the line was written %d times, want once", said)
	}
}
