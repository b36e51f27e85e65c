package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// A refusal is permanent, so only the content may cause one.
func TestRefuseDamage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err     error
		refused bool
	}{
		{errors.New("archive/tar: sparse map too long"), true},
		{fmt.Errorf("entry: %w", wire.ErrRefused), true},
		{syscall.EIO, false},
		{fmt.Errorf("entry: %w", &fs.PathError{Op: "write", Path: "/x", Err: syscall.EIO}), false},
		{fmt.Errorf("entry: %w", syscall.ENOSPC), false},
		{fmt.Errorf("reading: %w", syscall.ECONNRESET), false},
		{fmt.Errorf("%w: x", wire.ErrNoSpace), false},
		{fmt.Errorf("%w: x", wire.ErrTimeout), false},
		{fmt.Errorf("%w: x", wire.ErrDigest), false},
		{errStoreGone, false},
		{context.Canceled, false},
	} {
		got := refuseDamage(tc.err)
		if errors.Is(got, wire.ErrRefused) != tc.refused || !errors.Is(got, tc.err) {
			t.Errorf("refuseDamage(%v) = %v, want a refusal: %v", tc.err, got, tc.refused)
		}
	}
	if err := refuseDamage(nil); err != nil {
		t.Errorf("refuseDamage(nil) = %v", err)
	}
}
