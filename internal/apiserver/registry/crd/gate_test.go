package crd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
)

var things = schema.GroupResource{Group: "example.org", Resource: "things"}

// before is the stored CRD of things before a change.
func before() *apiextensions.CustomResourceDefinition {
	crd := &apiextensions.CustomResourceDefinition{}
	crd.Name, crd.UID, crd.ResourceVersion, crd.Generation = things.String(), "uid", "7", 1
	crd.Spec.Group, crd.Spec.Names.Plural = things.Group, things.Resource
	return crd
}

// after is the CRD after a change.
func after() (*apiextensions.CustomResourceDefinition, error) {
	crd := before()
	crd.ResourceVersion, crd.Generation = "8", 2
	return crd, nil
}

// serving is a gate of a server that uses the CRD at a resource version.
func serving(resourceVersion string) *Gate {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.UID, crd.ResourceVersion = "uid", resourceVersion
	return NewGate(func(schema.GroupResource) *apiextensionsv1.CustomResourceDefinition { return crd })
}

// begin starts a change that only has to be written.
func begin(t *testing.T, g *Gate) *change {
	t.Helper()
	c := &change{gate: g, replaces: true, from: before()}
	if err := errors.Join(c.still(t.Context(), things), c.shutOut(t.Context())); err != nil {
		t.Fatal(err)
	}
	return c
}

// answering is a storage whose writes return the result of the function write.
type answering struct {
	storage.Interface
	write func() error
}

func (a answering) Create(context.Context, string, runtime.Object, runtime.Object, uint64) error {
	return a.write()
}

func create(ctx context.Context, o *objects) error { return o.Create(ctx, "", nil, nil, 0) }

func done() error { return nil }

// TestOldStorageWritesNoMore: after a change, only storage that was created since then can
// write.
func TestOldStorageWritesNoMore(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err     error
		read    func() (*apiextensions.CustomResourceDefinition, error)
		changed bool
	}{
		"written":             {nil, after, true},
		"refused":             {apierrors.NewConflict(apiextensions.Resource("x"), "x", errors.New("no")), after, false},
		"nothing was written": {nil, func() (*apiextensions.CustomResourceDefinition, error) { return before(), nil }, false},
		"gone by now": {nil, func() (*apiextensions.CustomResourceDefinition, error) {
			return nil, apierrors.NewNotFound(apiextensions.Resource("x"), "x")
		}, true},
		"unknown, and written": {context.DeadlineExceeded, after, true},
		"unknown, and not written": {context.DeadlineExceeded, func() (*apiextensions.CustomResourceDefinition, error) {
			return before(), nil
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := serving("8")
				old := newObjects(g, things, answering{write: done})
				c := begin(t, g)
				c.end(tc.err, tc.read)
				if err := create(t.Context(), old); apierrors.IsTooManyRequests(err) != tc.changed {
					t.Errorf("writing through storage of before = %v, want it refused: %v", err, tc.changed)
				}
				if err := create(t.Context(), newObjects(g, things, answering{write: done})); err != nil {
					t.Errorf("writing through storage that is new = %v", err)
				}
			})
		})
	}
}

// TestChangeWaits: a change waits for writes, for writes without a certain result, for arriving
// requests, and until the current CRD is used.
func TestChangeWaits(t *testing.T) {
	t.Parallel()
	t.Run("write under way", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := serving("8")
			o := newObjects(g, things, answering{write: func() error { time.Sleep(time.Minute); return nil }})
			go func() { _ = create(t.Context(), o) }()
			synctest.Wait()
			start := time.Now()
			begin(t, g).end(nil, after)
			if took := time.Since(start); took < time.Minute {
				t.Errorf("the change began %v after the write, which takes a minute", took)
			}
		})
	})
	t.Run("write with an unknown end", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := serving("8")
			if err := create(t.Context(), newObjects(g, things, answering{write: func() error { return context.Canceled }})); err == nil {
				t.Fatal("the write gave no error")
			}
			start := time.Now()
			begin(t, g).end(nil, after)
			if took := time.Since(start); took < afterward {
				t.Errorf("the change began %v after a write that may take effect for %v", took, afterward)
			}
		})
	})
	t.Run("request under way", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := serving("8")
			var made *objects
			// The handler finds the CRD from before the change, and creates its storage.
			handler := g.wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				made = newObjects(g, things, answering{write: done})
				_ = create(r.Context(), made)
			}))
			ctx := apirequest.WithRequestInfo(t.Context(), &apirequest.RequestInfo{IsResourceRequest: true, APIGroup: things.Group, Resource: things.Resource})
			go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
			synctest.Wait()
			begin(t, g).end(nil, after)
			if err := create(t.Context(), made); !apierrors.IsTooManyRequests(err) {
				t.Errorf("writing through storage of a request that came before the change = %v, want it refused", err)
			}
		})
	})
	t.Run("until it is served", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			g := NewGate(func(schema.GroupResource) *apiextensionsv1.CustomResourceDefinition {
				crd := &apiextensionsv1.CustomResourceDefinition{}
				crd.UID, crd.ResourceVersion = "uid", "7"
				if time.Since(start) > time.Second {
					crd.ResourceVersion = "8"
				}
				return crd
			})
			begin(t, g).end(nil, after)
			if took := time.Since(start); took < time.Second {
				t.Errorf("the change ended after %v, the CRD is served as it is after a second", took)
			}
		})
	})
	t.Run("with a timeout", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := serving("7")
			c := begin(t, g)
			g.Close()
			c.end(nil, after)
		})
	})
}

// TestBodyEndsArrival: a client that sends its body slowly does not delay a change.
func TestBodyEndsArrival(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := serving("8")
		handler := g.wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = r.Body.Read(make([]byte, 1))
		}))
		reader, writer := io.Pipe()
		ctx := apirequest.WithRequestInfo(t.Context(), &apirequest.RequestInfo{IsResourceRequest: true, APIGroup: things.Group, Resource: things.Resource})
		go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", reader).WithContext(ctx))
		synctest.Wait()
		begin(t, g).end(nil, after)
		if err := writer.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestGateAtOnce sends requests while a CRD changes repeatedly. Every write must use the
// storage of the CRD that is current at that moment.
func TestGateAtOnce(t *testing.T) {
	t.Parallel()
	const writers, changes = 8, 200
	g := serving("8")
	var age atomic.Int64
	o := func() *objects {
		made := age.Load()
		return newObjects(g, things, answering{write: func() error {
			if now := age.Load(); now != made {
				t.Errorf("storage of age %d writes at age %d", made, now)
			}
			return nil
		}})
	}
	handler := g.wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := create(r.Context(), o()); err != nil && !apierrors.IsTooManyRequests(err) {
			t.Errorf("writing: %v", err)
		}
	}))
	ctx := apirequest.WithRequestInfo(t.Context(), &apirequest.RequestInfo{IsResourceRequest: true, APIGroup: things.Group, Resource: things.Resource})
	var enough atomic.Bool
	var working sync.WaitGroup
	for range writers {
		working.Go(func() {
			for !enough.Load() {
				handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", http.NoBody).WithContext(ctx))
			}
		})
	}
	for range changes {
		c := begin(t, g)
		age.Add(1)
		c.end(nil, after)
	}
	enough.Store(true)
	working.Wait()
}
