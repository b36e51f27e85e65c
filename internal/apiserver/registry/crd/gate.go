package crd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// everything is a weight above the number of concurrent requests at any time.
	everything = 1 << 30
	// afterward is how long a write without a response may still take effect. etcd does not start
	// a write more than seven seconds after it arrived:
	// https://github.com/etcd-io/etcd/blob/v3.6.0/server/config/config.go (ReqTimeout).
	afterward = 10 * time.Second
	// seenPoll is the interval of checks whether the server of types uses a changed CRD.
	seenPoll = 2 * time.Millisecond
)

// Gate separates writes of objects from changes of their CRD. While a CRD changes, no object of
// its type is written. After the change, no request writes an object through the storage of the
// old CRD: see [Gate.Delegate].
//
// It works within one API server, so there may be only one on a datastore.
type Gate struct {
	// served returns the CRD by which requests are served now.
	served func(schema.GroupResource) *apiextensionsv1.CustomResourceDefinition
	// timeout is afterward, except in tests.
	timeout time.Duration

	mu    sync.Mutex
	types map[schema.GroupResource]*passage
	// unknown is for requests of types that have no CRD yet.
	unknown *passage

	closing sync.Once
	closed  chan struct{}
}

// passage is the gate's state of one type.
type passage struct {
	// arriving counts requests between the gate and the storage of the type. On that way, a
	// request creates the storage from the current CRD if there is none.
	arriving *semaphore.Weighted
	// writing counts the writes of objects until their results are certain.
	writing *semaphore.Weighted
	// age counts the changes of the CRD. Storage with another age belongs to an old CRD. No
	// request arrives while the CRD changes, so no request can create storage of the old CRD
	// again.
	age atomic.Int64
}

func newPassage() *passage {
	return &passage{arriving: semaphore.NewWeighted(everything), writing: semaphore.NewWeighted(everything)}
}

// NewGate creates a gate. served returns the CRD that the server of types defined by CRDs
// currently uses, or nil. It is first called when a request is served.
func NewGate(served func(schema.GroupResource) *apiextensionsv1.CustomResourceDefinition) *Gate {
	return &Gate{
		served: served, timeout: afterward, types: map[schema.GroupResource]*passage{},
		unknown: newPassage(), closed: make(chan struct{}),
	}
}

// Close ends all waits, because the events that they wait for require a running server.
func (g *Gate) Close() { g.closing.Do(func() { close(g.closed) }) }

func (g *Gate) passage(resource schema.GroupResource) *passage {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.types[resource] == nil {
		g.types[resource] = newPassage()
	}
	return g.types[resource]
}

// Delegate returns the server of types defined by CRDs behind the gate.
//
// That server creates the storage of a type from its CRD when a request first needs it, and
// again shortly after the CRD has changed. A request therefore counts as arriving until it
// reads its body or reaches the storage, whichever is first. By then it has found the storage
// that serves it.
func (g *Gate) Delegate(server genericapiserver.DelegationTarget) genericapiserver.DelegationTarget {
	return delegate{DelegationTarget: server, gate: g}
}

type delegate struct {
	genericapiserver.DelegationTarget
	gate *Gate
}

// UnprotectedHandler implements genericapiserver.DelegationTarget.
func (d delegate) UnprotectedHandler() http.Handler {
	return d.gate.wrap(d.DelegationTarget.UnprotectedHandler())
}

func (g *Gate) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest {
			next.ServeHTTP(w, r)
			return
		}
		p, resource := g.unknown, schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
		if g.served(resource) != nil {
			p = g.passage(resource)
		}
		if p.arriving.Acquire(r.Context(), 1) != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the type is being changed: try again", http.StatusServiceUnavailable)
			return
		}
		arrived := sync.OnceFunc(func() { p.arriving.Release(1) })
		defer arrived()
		r = r.WithContext(context.WithValue(r.Context(), arrivedKey{}, arrived))
		if r.Body != nil {
			r.Body = body{ReadCloser: r.Body, arrived: arrived}
		}
		next.ServeHTTP(w, r)
	})
}

type arrivedKey struct{}

// arrive records that a request has reached the storage.
func arrive(ctx context.Context) {
	if arrived, ok := ctx.Value(arrivedKey{}).(func()); ok {
		arrived()
	}
}

// body records that a request starts to read its body.
type body struct {
	io.ReadCloser
	arrived func()
}

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	b.arrived()
	return b.ReadCloser.Read(p)
}

// change is one change of one CRD.
type change struct {
	gate    *Gate
	passage *passage
	// alone means that no object is written. shut means that no request arrives either.
	alone, shut bool
	// from is the CRD before the change. replaces reports whether its storage will be created
	// again.
	from     *apiextensions.CustomResourceDefinition
	replaces bool
}

// still waits until no object of the type is being written, and blocks new writes.
func (c *change) still(ctx context.Context, resource schema.GroupResource) error {
	if c.alone {
		return nil
	}
	c.passage = c.gate.passage(resource)
	if err := c.passage.writing.Acquire(ctx, everything); err != nil {
		return apierrors.NewServerTimeout(apiextensions.Resource("customresourcedefinitions"), "update", 1)
	}
	c.alone = true
	return nil
}

// shutOut waits until no request of the type is arriving, and blocks new ones.
func (c *change) shutOut(ctx context.Context) error {
	if c.shut {
		return nil
	}
	for _, p := range []*passage{c.gate.unknown, c.passage} {
		if err := p.arriving.Acquire(ctx, everything); err != nil {
			if p == c.passage {
				c.gate.unknown.arriving.Release(everything)
			}
			return apierrors.NewServerTimeout(apiextensions.Resource("customresourcedefinitions"), "update", 1)
		}
	}
	c.shut = true
	return nil
}

// letIn undoes shutOut.
func (c *change) letIn() {
	if c.shut {
		c.passage.arriving.Release(everything)
		c.gate.unknown.arriving.Release(everything)
	}
	c.shut = false
}

// end undoes still and shutOut, once requests are served by the current CRD. err is the error
// of the write, and read reads the CRD.
func (c *change) end(err error, read func() (*apiextensions.CustomResourceDefinition, error)) {
	if !c.alone {
		return
	}
	defer c.passage.writing.Release(everything)
	defer c.letIn()
	if c.shut && c.replaces && c.took(err, read) {
		c.passage.age.Add(1)
	}
}

// took reports whether the CRD was written. It waits until requests are served by the current
// CRD.
func (c *change) took(err error, read func() (*apiextensions.CustomResourceDefinition, error)) bool {
	if err != nil {
		if isCertain(err) {
			return false
		}
		c.gate.wait(c.gate.timeout)
	}
	for {
		crd, err := read()
		switch {
		case apierrors.IsNotFound(err), err == nil && crd.UID != c.from.UID:
			return true
		case err == nil && crd.Generation == c.from.Generation && crd.DeletionTimestamp.IsZero() == c.from.DeletionTimestamp.IsZero():
			return false
		case err == nil && c.gate.hasSeen(crd):
			return true
		}
		if !c.gate.wait(seenPoll) {
			return true
		}
	}
}

// hasSeen reports whether requests are served by this CRD or a later one.
func (g *Gate) hasSeen(crd *apiextensions.CustomResourceDefinition) bool {
	served := g.served(schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural})
	if served == nil || served.UID != crd.UID {
		return false
	}
	have, err := strconv.ParseUint(served.ResourceVersion, 10, 64)
	want, problem := strconv.ParseUint(crd.ResourceVersion, 10, 64)
	return err == nil && problem == nil && have >= want
}

// wait waits for the duration. It returns false if the gate was closed.
func (g *Gate) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-g.closed:
		return false
	case <-timer.C:
		return true
	}
}

// isCertain reports whether an error of a write proves that nothing was written.
func isCertain(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Code < http.StatusInternalServerError
	}
	var known *storage.StorageError
	return errors.As(err, &known) && !storage.IsUnreachable(err)
}
