package riklet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestProbeOfABusyMachineIsRetried checks the retries on a machine on which guests boot too slowly
// at first.
func TestProbeOfABusyMachineIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var asked, pauses []time.Duration
		probe := func(context.Context) error {
			if asked = append(asked, time.Since(began)); len(asked) < 8 {
				return errors.New("no guest boots")
			}
			return nil
		}
		if !retryProbe(t.Context(), probe, func(_ error, pause time.Duration) { pauses = append(pauses, pause) }) {
			t.Error("retryProbe() = false, want true")
		}
		const m = time.Minute
		if diff := cmp.Diff([]time.Duration{0, 2 * m, 6 * m, 14 * m, 30 * m, 62 * m, 122 * m, 182 * m}, asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]time.Duration{2 * m, 4 * m, 8 * m, 16 * m, 32 * m, 60 * m, 60 * m}, pauses); diff != "" {
			t.Errorf("reported (-want +got):\n%s", diff)
		}
	})
}

// TestProbingEndsWithTheAgent checks that the probes end with ctx, without waiting for a pause.
func TestProbingEndsWithTheAgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		never := func(context.Context) error { return errors.New("no guest boots") }
		if retryProbe(ctx, never, func(error, time.Duration) {}) {
			t.Error("retryProbe() = true, want false")
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it ended after %v, want the second until the end of ctx", took)
		}
	})
}
