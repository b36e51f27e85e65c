package process

import (
	"fmt"
	"testing"

	"rik.dev/rik/internal/riklet/archive"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
)

// TestPermanentErrors checks which errors of an App's start recur at every attempt.
func TestPermanentErrors(t *testing.T) {
	t.Parallel()
	e := New(nil, nil, false)
	for _, err := range []error{archive.ErrRefused, archive.ErrNotFound, image.ErrDigest, spec.ErrNoCommand, spec.ErrUser, errRoot, engine.ErrStopSignal} {
		if !e.IsPermanent(fmt.Errorf("starting: %w", err)) {
			t.Errorf("IsPermanent(%v) = false, want true", err)
		}
	}
	for _, err := range []error{archive.ErrNoSpace, image.ErrTimeout, spec.ErrNotHeld} {
		if e.IsPermanent(err) {
			t.Errorf("IsPermanent(%v) = true, want false", err)
		}
	}
}
