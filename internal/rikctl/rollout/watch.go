package rollout

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// watchWorkload calls each with a workload and with each change of it, until each returns true
// or an error. It restarts broken watches.
func watchWorkload(ctx context.Context, c client.WithWatch, key client.ObjectKey, each func(*rikv1alpha1.Workload) (bool, error)) error {
	options := func(raw metav1.ListOptions) *client.ListOptions {
		raw.FieldSelector = "metadata.name=" + key.Name
		return &client.ListOptions{Namespace: key.Namespace, Raw: &raw}
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
			list := &rikv1alpha1.WorkloadList{}
			err := c.List(ctx, list, options(raw))
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &rikv1alpha1.WorkloadList{}, options(raw))
		},
	}
	missing := apierrors.NewNotFound(rikv1alpha1.Resource("workloads"), key.Name)
	exists := func(store cache.Store) (bool, error) {
		if len(store.ListKeys()) == 0 {
			return false, missing
		}
		return false, nil
	}
	_, err := watchtools.UntilWithSync(ctx, lw, &rikv1alpha1.Workload{}, exists, func(event watch.Event) (bool, error) {
		w, ok := event.Object.(*rikv1alpha1.Workload)
		if !ok {
			return false, fmt.Errorf("watching workload %s: the server sent %T", key.Name, event.Object)
		}
		if event.Type == watch.Deleted {
			return false, missing
		}
		return each(w)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
