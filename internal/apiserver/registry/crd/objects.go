package crd

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// Objects returns the options of the storage of types defined by CRDs, behind the gate.
func (g *Gate) Objects(options generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return objectOptions{RESTOptionsGetter: options, gate: g}
}

type objectOptions struct {
	generic.RESTOptionsGetter
	gate *Gate
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o objectOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	decorate := options.Decorator
	options.Decorator = func(config *storagebackend.ConfigForResource, prefix string, keys func(runtime.Object) (string, error), single, list func() runtime.Object,
		attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		made, destroy, err := decorate(config, prefix, keys, single, list, attributes, triggers, indexers)
		if err != nil {
			return nil, nil, err
		}
		return newObjects(o.gate, config.GroupResource, made), destroy, nil
	}
	return options, err
}

// objects is the storage of a type for the CRD at the time of its creation.
type objects struct {
	storage.Interface
	gate    *Gate
	passage *passage
	age     int64
}

func newObjects(g *Gate, resource schema.GroupResource, s storage.Interface) *objects {
	p := g.passage(resource)
	return &objects{Interface: s, gate: g, passage: p, age: p.age.Load()}
}

// write performs a write unless the CRD has changed. A write without a certain result counts as
// in progress for some time.
func (o *objects) write(ctx context.Context, do func() error) error {
	arrive(ctx)
	if err := o.passage.writing.Acquire(ctx, 1); err != nil {
		return apierrors.NewTimeoutError("the type is being changed", 1)
	}
	done := func() { o.passage.writing.Release(1) }
	if o.age != o.passage.age.Load() {
		done()
		return apierrors.NewTooManyRequests("the type was changed a moment ago: try again", 1)
	}
	err := do()
	if err == nil || isCertain(err) {
		done()
		return err
	}
	time.AfterFunc(o.gate.timeout, done)
	return err
}

// Create implements storage.Interface.
func (o *objects) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return o.write(ctx, func() error { return o.Interface.Create(ctx, key, obj, out, ttl) })
}

// GuaranteedUpdate implements storage.Interface.
func (o *objects) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, known runtime.Object) error {
	return o.write(ctx, func() error {
		return o.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, known)
	})
}

// Delete implements storage.Interface. It is not blocked, because it removes no fields of an
// object that stays.
func (o *objects) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, known runtime.Object, options storage.DeleteOptions) error {
	arrive(ctx)
	return o.Interface.Delete(ctx, key, out, preconditions, validate, known, options)
}

// Watch implements storage.Interface.
func (o *objects) Watch(ctx context.Context, key string, options storage.ListOptions) (watch.Interface, error) {
	arrive(ctx)
	return o.Interface.Watch(ctx, key, options)
}

// Get implements storage.Interface.
func (o *objects) Get(ctx context.Context, key string, options storage.GetOptions, out runtime.Object) error {
	arrive(ctx)
	return o.Interface.Get(ctx, key, options, out)
}

// GetList implements storage.Interface.
func (o *objects) GetList(ctx context.Context, key string, options storage.ListOptions, out runtime.Object) error {
	arrive(ctx)
	return o.Interface.GetList(ctx, key, options, out)
}
