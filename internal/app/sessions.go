package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/controller/nodeapi"
	"rik.dev/rik/internal/rpc/nodev1"
)

// sessions connects the API server with the node service. The node service needs the API server,
// so it is created later. Until then, no node is connected.
type sessions struct {
	nodes atomic.Pointer[nodeapi.Server]
}

// Open implements instance.Sessions.
func (s *sessions) Open(ctx context.Context, node string, open *nodev1.OpenSession) (instance.Session, error) {
	nodes := s.nodes.Load()
	if nodes == nil {
		return nil, instance.ErrNotConnected
	}
	session, err := nodes.Open(ctx, node, open)
	switch {
	case errors.Is(err, nodeapi.ErrNodeNotConnected), errors.Is(err, nodeapi.ErrNodeLost):
		return nil, fmt.Errorf("%w: %w", instance.ErrNotConnected, err)
	case errors.Is(err, nodeapi.ErrNotOpened):
		return nil, fmt.Errorf("%w: %w", instance.ErrNotOpened, err)
	case errors.Is(err, nodeapi.ErrBusy):
		return nil, fmt.Errorf("%w: %w", instance.ErrBusy, err)
	case err != nil:
		return nil, err
	}
	return session, nil
}

// lateHandler answers 503 until the real handler is set. The API server fixes its routes before
// the controller exists.
type lateHandler struct{ handler atomic.Pointer[http.Handler] }

func (l *lateHandler) set(h http.Handler) { l.handler.Store(&h) }

// ServeHTTP implements http.Handler.
func (l *lateHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := l.handler.Load()
	if h == nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the controller is starting", http.StatusServiceUnavailable)
		return
	}
	(*h).ServeHTTP(w, r)
}
