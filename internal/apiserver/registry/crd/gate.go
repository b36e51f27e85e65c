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
	// everything is more than ever is at work at once.
	everything = 1 << 30
	// afterward is how long a write of which nothing was heard may still take effect.
	// Seven seconds after it came in, etcd no longer begins one:
	// https://github.com/etcd-io/etcd/blob/v3.6.0/server/config/config.go (ReqTimeout).
	afterward = 10 * time.Second
	// seenPoll is how often it is looked whether a CRD has reached those who serve it.
	seenPoll = 2 * time.Millisecond
)

// Gate keeps writes of objects and changes of their CRD apart. While a CRD changes, no
// object of its type is written, and afterward none is by a request that was let in by
// the CRD as it was: see [Gate.Delegate] for how that is known.
//
// It knows one API server, and so there may be only one on a datastore.
type Gate struct {
	// served finds the CRD by which requests are served now.
	served func(schema.GroupResource) *apiextensionsv1.CustomResourceDefinition
	// timeout is afterward, but in tests.
	timeout time.Duration

	mu    sync.Mutex
	types map[schema.GroupResource]*passage
	// unknown is for requests of types that have no CRD yet.
	unknown *passage

	closing sync.Once
	closed  chan struct{}
}

// passage is what the gate knows of one type.
type passage struct {
	// arriving are requests between the gate and the storage of the type: on that way
	// they make the storage, if there is none, of the CRD as they found it.
	arriving *semaphore.Weighted
	// writing are the writes of objects, until it is certain what became of them.
	writing *semaphore.Weighted
	// age counts the changes of the CRD. Storage of another age serves a CRD that is no
	// more: as no request arrives while it changes, none can make old storage anew.
	age atomic.Int64
}

func newPassage() *passage {
	return &passage{arriving: semaphore.NewWeighted(everything), writing: semaphore.NewWeighted(everything)}
}

// NewGate makes a gate. The function finds the CRD that the server of types defined by
// CRDs has before it, or nil; it is first called when a request is served.
func NewGate(served func(schema.GroupResource) *apiextensionsv1.CustomResourceDefinition) *Gate {
	return &Gate{
		served: served, timeout: afterward, types: map[schema.GroupResource]*passage{},
		unknown: newPassage(), closed: make(chan struct{}),
	}
}

// Close ends all waiting for what only a running server does.
func (g *Gate) Close() { g.closing.Do(func() { close(g.closed) }) }

func (g *Gate) passage(resource schema.GroupResource) *passage {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.types[resource] == nil {
		g.types[resource] = newPassage()
	}
	return g.types[resource]
}

// Delegate is the server of types defined by CRDs behind the gate.
//
// That server makes the storage of a type of its CRD when a request first needs it, and
// again after the CRD has changed, a moment later. A request therefore counts as
// arriving until it reads its body or reaches the storage, whichever is first: then it
// has found the storage that serves it.
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

// arrive notes that a request has reached storage.
func arrive(ctx context.Context) {
	if arrived, ok := ctx.Value(arrivedKey{}).(func()); ok {
		arrived()
	}
}

// body notes that a request begins to read its body.
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
	// alone: no object is written. shut: no request arrives either.
	alone, shut bool
	// from is the CRD as it was, and replaces whether its storage will be made anew.
	from     *apiextensions.CustomResourceDefinition
	replaces bool
}

// still waits until no object of the type is written, and none will be.
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

// shutOut waits until no request of the type arrives, and none will.
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

// end undoes all, once requests are served by the CRD as it is now. The error is that of
// the write, and read reads the CRD.
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

// took says whether the CRD was written, and waits until those who serve it have seen it.
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

// hasSeen says whether requests are served by the CRD as it is, or by a later one.
func (g *Gate) hasSeen(crd *apiextensions.CustomResourceDefinition) bool {
	served := g.served(schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural})
	if served == nil || served.UID != crd.UID {
		return false
	}
	have, err := strconv.ParseUint(served.ResourceVersion, 10, 64)
	want, problem := strconv.ParseUint(crd.ResourceVersion, 10, 64)
	return err == nil && problem == nil && have >= want
}

// wait is false when the gate is closed.
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

// isCertain says whether an error of a write means that nothing was written.
func isCertain(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Code < http.StatusInternalServerError
	}
	var known *storage.StorageError
	return errors.As(err, &known) && !storage.IsUnreachable(err)
}
