package index

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Follow keeps the index up to date with the API server until ctx ends. The index is the store
// of the watch. An informer would keep the instances in a store of its own, and with it a second
// copy of each instance that the controller has written.
func (v *Instances) Follow(ctx context.Context, c client.WithWatch) error {
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := &rikv1alpha1.InstanceList{}
			return list, c.List(ctx, list, &client.ListOptions{Raw: &o, Limit: o.Limit, Continue: o.Continue})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &rikv1alpha1.InstanceList{}, &client.ListOptions{Raw: &o})
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, c), &rikv1alpha1.Instance{}, sink{v},
		cache.ReflectorOptions{Name: "instances"}).RunWithContext(ctx)
	return nil
}

// sink is the index as the store of a reflector, which passes it only Instances.
type sink struct{ index *Instances }

var _ cache.ReflectorStore = sink{}

// Add implements cache.ReflectorStore.
func (s sink) Add(o any) error {
	s.index.Observe(o.(*rikv1alpha1.Instance))
	return nil
}

// Update implements cache.ReflectorStore.
func (s sink) Update(o any) error { return s.Add(o) }

// Delete implements cache.ReflectorStore.
func (s sink) Delete(o any) error {
	s.index.Remove(o.(*rikv1alpha1.Instance))
	return nil
}

// Replace implements cache.ReflectorStore.
func (s sink) Replace(objects []any, version string) error {
	list := make([]*rikv1alpha1.Instance, 0, len(objects))
	for _, o := range objects {
		in, ok := o.(*rikv1alpha1.Instance)
		if !ok {
			return fmt.Errorf("programmer error: %T in a list of instances", o)
		}
		list = append(list, in)
	}
	s.index.Replace(list, numberOf(version))
	return nil
}

// Resync implements cache.ReflectorStore. The index needs no repetitions.
func (sink) Resync() error { return nil }
