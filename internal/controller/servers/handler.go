package servers

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/reply"
	wire "rik.dev/rik/internal/rpc/servers"
)

// probeTimeout bounds the wait for one server in a list.
const probeTimeout = 2 * time.Second

var resource = schema.GroupResource{Group: rikv1alpha1.GroupName, Resource: wire.Resource}

// Permission returns the permission that a request to Handler requires.
func Permission(r *http.Request) authorizationv1.ResourceAttributes {
	p := authorizationv1.ResourceAttributes{Resource: wire.Resource, Name: strings.TrimPrefix(r.URL.Path, wire.Path), Verb: "list"}
	if r.Method == http.MethodDelete {
		p.Verb = "delete"
	}
	return p
}

// Remover removes servers.
type Remover struct {
	Roster *Roster
	// Probe reports whether the API at a URL answers.
	Probe func(ctx context.Context, url string) error
	// EmbeddedEtcd is true if the servers are members of one etcd. Then the leader completes the
	// removal of a server. With an external datastore, only its entry is removed.
	EmbeddedEtcd bool
}

// Handler serves the servers at [wire.Path]. It must be mounted behind authorization.
func (m Remover) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := m.serve(r)
		reply.JSON(w, http.StatusOK, answer, err)
	})
}

func (m Remover) serve(r *http.Request) (any, error) {
	name := strings.TrimPrefix(r.URL.Path, wire.Path)
	switch {
	case r.Method == http.MethodGet && name == "":
		return m.list(r.Context())
	case r.Method == http.MethodDelete && name != "":
		return m.remove(r.Context(), name)
	}
	return nil, apierrors.NewMethodNotSupported(resource, strings.ToLower(r.Method))
}

func (m Remover) list(ctx context.Context) (*wire.List, error) {
	all, err := m.Roster.All(ctx)
	if err != nil {
		return nil, err
	}
	holder, _ := m.Roster.cfg.Holder()
	list := &wire.List{Revision: m.Roster.view().revision, Items: make([]wire.Row, len(all))}
	var probing sync.WaitGroup
	for i, s := range all {
		row := &list.Items[i]
		row.Server = s
		row.Active = holder != "" && s.Identity == holder
		probing.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, probeTimeout)
			defer cancel()
			err := m.Probe(ctx, s.API)
			row.Ready = err == nil
			if err != nil {
				row.Problem = err.Error()
			}
			if waits := m.Roster.waits(s.Name); waits != "" {
				row.Problem = waits
			}
		})
	}
	probing.Wait()
	slices.SortFunc(list.Items, func(a, b wire.Row) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (m Remover) remove(ctx context.Context, name string) (*wire.Server, error) {
	all, err := m.Roster.All(ctx)
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(slices.Clone(all), func(s wire.Server) bool { return s.Name == name || s.Removed != nil })
	if len(others) == 0 {
		return nil, apierrors.NewConflict(resource, name, errors.New("it is the only server: add another one first"))
	}
	removed, err := m.Roster.Remove(ctx, name)
	if errors.Is(err, ErrUnknown) {
		return nil, apierrors.NewNotFound(resource, name)
	}
	if err != nil {
		return nil, err
	}
	if !m.EmbeddedEtcd {
		return &removed, m.Roster.Forget(ctx, name)
	}
	return &removed, nil
}
