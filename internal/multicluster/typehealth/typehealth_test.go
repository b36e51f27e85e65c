package typehealth_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"rik.dev/rik/internal/multicluster/typehealth"
)

// server answers lists and watches.
type server struct {
	requests atomic.Int32
	list     func(ctx context.Context) (runtime.Object, error)
	watch    func(ctx context.Context) (watch.Interface, error)
}

func empty(context.Context) (runtime.Object, error) {
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMapList"}}
	list.SetResourceVersion("7")
	return list, nil
}

func quiet(ctx context.Context) (watch.Interface, error) {
	w := watch.NewFake()
	go func() {
		<-ctx.Done()
		w.Stop()
	}()
	return w, nil
}

// reader runs an informer in a synctest bubble. The server does not stream lists.
func (s *server) reader(t *testing.T, options typehealth.Options) (*typehealth.Reader, cache.SharedIndexInformer, func()) {
	t.Helper()
	options.Source = typehealth.Source{
		List: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			s.requests.Add(1)
			return s.list(ctx)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			s.requests.Add(1)
			if o.SendInitialEvents != nil {
				return nil, apierrors.NewBadRequest("lists are not streamed")
			}
			return s.watch(ctx)
		},
	}
	r := typehealth.New(options)
	informer := cache.NewSharedIndexInformer(r.ListerWatcher(), &unstructured.Unstructured{}, 0, cache.Indexers{})
	// The default handler sleeps depending on the last error of any informer.
	if err := informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	return r, informer, func() {
		cancel()
		<-done
	}
}

// TestRequestsAreBounded tests that a server which fails in any way gets a limited rate of
// requests. The reader reports the problem until the server works again.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	expired := apierrors.NewResourceExpired("too old resource version")
	event := func(e watch.Event) func(context.Context) (watch.Interface, error) {
		return func(context.Context) (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(1, false)
			w.Action(e.Type, e.Object)
			return w, nil
		}
	}
	status := expired.ErrStatus
	for name, tc := range map[string]struct {
		list  func(context.Context) (runtime.Object, error)
		watch func(context.Context) (watch.Interface, error)
		says  string
	}{
		"watches are refused as expired": {empty, func(context.Context) (watch.Interface, error) { return nil, expired }, "too old"},
		"watches end as expired":         {empty, event(watch.Event{Type: watch.Error, Object: &status}), "too old"},
		"watches end at once": {empty, func(context.Context) (watch.Interface, error) {
			w := watch.NewFake()
			w.Stop()
			return w, nil
		}, "ends every watch before it sends an event"},
		"lists are refused":            {func(context.Context) (runtime.Object, error) { return nil, errors.New("conversion failed") }, quiet, "conversion failed"},
		"lists are refused as expired": {func(context.Context) (runtime.Object, error) { return nil, expired }, quiet, "too old"},
		"lists are not answered": {func(ctx context.Context) (runtime.Object, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}, quiet, "has not answered"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var mended atomic.Bool
				s := &server{
					list: func(ctx context.Context) (runtime.Object, error) {
						if mended.Load() {
							return empty(ctx)
						}
						return tc.list(ctx)
					},
					watch: func(ctx context.Context) (watch.Interface, error) {
						if mended.Load() {
							return quiet(ctx)
						}
						return tc.watch(ctx)
					},
				}
				r, _, stop := s.reader(t, typehealth.Options{})
				defer stop()
				time.Sleep(10 * time.Minute)
				if n := s.requests.Load(); n > 200 {
					t.Errorf("%d requests in ten minutes", n)
				}
				if trouble := r.Trouble(time.Now()); trouble == nil || !strings.Contains(trouble.Message, tc.says) {
					t.Errorf("the trouble is %+v, want %q", trouble, tc.says)
				}
				mended.Store(true)
				time.Sleep(10 * time.Minute)
				if trouble := r.Trouble(time.Now()); trouble != nil {
					t.Errorf("after the server was mended the trouble is %+v", trouble)
				}
			})
		})
	}
}

// TestSoonAfterAnOutage tests that objects are read within seconds after the server is reachable
// again, after an outage of any length. The outage does not count as a fault of the type.
func TestSoonAfterAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Bool
		s := &server{watch: quiet, list: func(ctx context.Context) (runtime.Object, error) {
			if !back.Load() {
				return nil, errors.New("connection refused")
			}
			return empty(ctx)
		}}
		r, informer, stop := s.reader(t, typehealth.Options{Unreachable: func(err error) bool { return err.Error() == "connection refused" }})
		defer stop()
		time.Sleep(time.Hour)
		if trouble := r.Trouble(time.Now()); trouble != nil {
			t.Errorf("while the server is out of reach the trouble is %+v", trouble)
		}
		back.Store(true)
		time.Sleep(3 * time.Second)
		if !informer.HasSynced() {
			t.Error("three seconds after the server was back nothing has been read")
		}
	})
}
