package apiserver_test

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rik.dev/rik/internal/testkit/apitest"
)

// TestAWatchFromTheFutureIsRefused: a watch after the latest revision of a restored datastore
// is refused, like a list. A watch from the current revision is served.
func TestAWatchFromTheFutureIsRefused(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	client, namespace := dynamicClient(t, s.Config), s.Namespace(t)
	for _, resource := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "configmaps"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "rik.dev", Version: "v1alpha1", Resource: "instances"},
	} {
		objects := client.Resource(resource).Namespace(namespace)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if w, err := objects.Watch(ctx, metav1.ListOptions{ResourceVersion: "9000000000"}); !apierrors.IsTimeout(err) || !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			if err == nil {
				w.Stop()
			}
			t.Errorf("watching %s from the future: %v, want Too large resource version", resource.Resource, err)
		}
		list, err := objects.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := objects.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion(), AllowWatchBookmarks: true})
		if err != nil {
			t.Fatalf("watching %s from the present: %v", resource.Resource, err)
		}
		w.Stop()
	}
}
