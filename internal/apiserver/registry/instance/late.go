package instance

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"rik.dev/rik/internal/rpc/nodev1"
)

// LateSessions are the Sessions of a service that needs the API server, and is therefore created
// after it. Until Set is called, no node is connected.
type LateSessions struct {
	service atomic.Pointer[SessionService]
}

// SessionService opens sessions with errors of its own.
type SessionService struct {
	Open func(ctx context.Context, node string, open *nodev1.OpenSession) (Session, error)
	// NotConnected, NotOpened and Busy are the errors that mean ErrNotConnected, ErrNotOpened and
	// ErrBusy.
	NotConnected, NotOpened, Busy []error
}

// Set sets the service of all later sessions.
func (l *LateSessions) Set(s SessionService) { l.service.Store(&s) }

// Open implements Sessions.
func (l *LateSessions) Open(ctx context.Context, node string, open *nodev1.OpenSession) (Session, error) {
	service := l.service.Load()
	if service == nil {
		return nil, ErrNotConnected
	}
	session, err := service.Open(ctx, node, open)
	if err != nil {
		return nil, service.translate(err)
	}
	return session, nil
}

func (s *SessionService) translate(err error) error {
	for _, t := range []struct {
		from []error
		to   error
	}{{s.NotConnected, ErrNotConnected}, {s.NotOpened, ErrNotOpened}, {s.Busy, ErrBusy}} {
		for _, from := range t.from {
			if errors.Is(err, from) {
				return fmt.Errorf("%w: %w", t.to, err)
			}
		}
	}
	return err
}
