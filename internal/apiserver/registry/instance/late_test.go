package instance

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"rik.dev/rik/internal/rpc/nodev1"
)

// TestLateSessions tests that errors of the service become those of Sessions and keep their reason.
func TestLateSessions(t *testing.T) {
	t.Parallel()
	var late LateSessions
	if _, err := late.Open(t.Context(), "n-1", &nodev1.OpenSession{}); !errors.Is(err, ErrNotConnected) {
		t.Errorf("before Set, Open() = %v, want ErrNotConnected", err)
	}
	gone, lost, slow, full, other := errors.New("gone"), errors.New("lost"), errors.New("slow"), errors.New("full"), errors.New("other")
	var fails error
	late.Set(SessionService{
		Open: func(_ context.Context, node string, _ *nodev1.OpenSession) (Session, error) {
			return nil, fmt.Errorf("%w: node %s", fails, node)
		},
		NotConnected: []error{gone, lost}, NotOpened: []error{slow}, Busy: []error{full},
	})
	for _, tc := range []struct{ fails, want error }{{gone, ErrNotConnected}, {lost, ErrNotConnected}, {slow, ErrNotOpened}, {full, ErrBusy}, {other, nil}} {
		fails = tc.fails
		session, err := late.Open(t.Context(), "n-1", &nodev1.OpenSession{})
		want := tc.fails.Error() + ": node n-1"
		if tc.want != nil {
			want = tc.want.Error() + ": " + want
		}
		if session != nil || err == nil || err.Error() != want || !errors.Is(err, tc.fails) || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("Open() that fails with %v = %v, %v, want %q", tc.fails, session, err, want)
		}
	}
}
