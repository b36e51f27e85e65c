package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// TestSeal: what is stored can be read. If the stream or the store fails, the store gets an error.
func TestSeal(t *testing.T) {
	t.Parallel()
	plain, written := write(t, Recipients{Unencrypted: true}, 5000)
	broken := errors.New("the store is full")
	for name, tc := range map[string]struct {
		to     Recipients
		stream []byte
		limit  int64 // after which the store fails
		want   error
	}{
		"encrypted":       {cheap(t), plain, 1 << 40, nil},
		"plain":           {Recipients{Unencrypted: true}, plain, 1 << 40, nil},
		"empty":           {cheap(t), nil, 1 << 40, ErrNotBackup},
		"cut":             {cheap(t), plain[:len(plain)/2], 1 << 40, ErrTruncated},
		"cut at its end":  {cheap(t), plain[:len(plain)-1], 1 << 40, ErrTruncated},
		"a failing store": {cheap(t), plain, 1000, broken},
		"nobody":          {Recipients{}, plain, 1 << 40, ErrUnprotected},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stored bytes.Buffer
			var got error
			m, err := Seal(t.Context(), tc.to, bytes.NewReader(tc.stream), func(_ context.Context, r io.Reader) error {
				if _, got = io.Copy(&stored, io.LimitReader(r, tc.limit)); got == nil && int64(stored.Len()) == tc.limit {
					return broken
				}
				return got
			})
			if !errors.Is(err, tc.want) {
				t.Fatalf("Seal() = %v, want %v", err, tc.want)
			}
			if tc.want != nil {
				if !errors.Is(tc.want, broken) && !errors.Is(tc.want, ErrUnprotected) && got == nil {
					t.Error("the store got no error")
				}
				return
			}
			if !m.equal(written) {
				t.Errorf("Seal() = %+v, want the manifest that was written", m)
			}
			if _, err := Read(t.Context(), &stored, identity(t, passphrase), nil, Visitor{}); err != nil {
				t.Errorf("Read() = %v", err)
			}
		})
	}
}

func TestNamesSortByTime(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.FixedZone("", 3600))
	first, second := Name(at), Name(at.Add(time.Second))
	if !strings.HasPrefix(first, "rik-20260203T030506Z-") || !strings.HasSuffix(first, Extension) || first >= second {
		t.Errorf("Name() = %q and %q", first, second)
	}
}
