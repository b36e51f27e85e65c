// Package cache has what the splitter's caches of objects share: they start and stop one by one,
// log lost watches, and find objects with their types.
package cache

import (
	"context"
	"errors"
	"io"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"

	"rik.dev/rik/internal/finalstate"
)

// Cache is a cache that can be stopped while others continue.
type Cache struct {
	toolscache.SharedIndexInformer

	cancel context.CancelFunc
	done   chan struct{}
}

// New returns a cache that logs the errors of its watch. Start fills it.
func New(informer toolscache.SharedIndexInformer, log *slog.Logger) (*Cache, error) {
	return &Cache{SharedIndexInformer: informer, cancel: func() {}, done: make(chan struct{})}, Logged(informer, log)
}

// Start fills the cache and updates it until ctx or Stop ends it. It does not block. It may be
// called once.
func (c *Cache) Start(ctx context.Context) {
	ctx, c.cancel = context.WithCancel(ctx)
	go func() {
		defer close(c.done)
		c.RunWithContext(ctx)
	}()
}

// Cancel ends a cache that was started, without waiting. A caller that holds a lock which event
// handlers need uses it instead of Stop.
func (c *Cache) Cancel() { c.cancel() }

// Stop ends a cache that was started, and waits for its end.
func (c *Cache) Stop() {
	c.cancel()
	<-c.done
}

// Logged makes the errors of a watch appear in the log.
func Logged(informer toolscache.SharedIndexInformer, log *slog.Logger) error {
	return informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
		switch {
		case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err), errors.Is(err, io.EOF):
		default:
			log.Warn("watching the kcp", "type", r.TypeDescription(), "err", err)
		}
	})
}

// Changes returns a handler that calls changed for every change of an object of a type. before is
// nil for a new object, and now is nil for a deleted one.
func Changes[T any](changed func(before, now *T)) toolscache.ResourceEventHandler {
	call := func(before, now any) {
		old, _ := finalstate.As[*T](before)
		current, _ := now.(*T)
		if old != nil || current != nil {
			changed(old, current)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { call(nil, object) },
		UpdateFunc: call,
		DeleteFunc: func(object any) { call(object, nil) },
	}
}

// IndexBy returns an index by the keys of objects of a type.
func IndexBy[T any](keys func(*T) []string) toolscache.IndexFunc {
	return func(object any) ([]string, error) {
		if o, ok := object.(*T); ok {
			return keys(o), nil
		}
		return nil, nil
	}
}

// Get returns the object with a key, or nil if the cache does not have it.
func Get[T any](informer toolscache.SharedIndexInformer, key string) *T {
	object, _, _ := informer.GetIndexer().GetByKey(key)
	out, _ := object.(*T)
	return out
}

// Find returns the objects under a key of an index. The index must exist.
func Find[T any](informer toolscache.SharedIndexInformer, index, key string) []*T {
	// ByIndex fails only if the index does not exist.
	objects, _ := informer.GetIndexer().ByIndex(index, key)
	return typed[T](objects)
}

// List returns all objects.
func List[T any](informer toolscache.SharedIndexInformer) []*T {
	return typed[T](informer.GetIndexer().List())
}

func typed[T any](objects []any) []*T {
	out := make([]*T, 0, len(objects))
	for _, object := range objects {
		if o, ok := object.(*T); ok {
			out = append(out, o)
		}
	}
	return out
}
