package node

import (
	"context"
	"log/slog"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// TestMarkControlPlane tests that the node gets its role also if it joins only later, and keeps its
// labels.
func TestMarkControlPlane(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := rikv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	attempts := 0
	c := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			if attempts++; attempts == 2 { // the node joins after the first attempt
				n := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n-1", Labels: map[string]string{"disk": "fast"}}}
				if err := c.Create(ctx, n); err != nil {
					return err
				}
			}
			return c.Patch(ctx, o, p, options...)
		},
	}).Build()
	MarkControlPlane(t.Context(), c, "n-1", slog.New(slog.DiscardHandler))
	var n rikv1alpha1.Node
	if err := c.Get(t.Context(), client.ObjectKey{Name: "n-1"}, &n); err != nil {
		t.Fatal(err)
	}
	if _, marked := n.Labels["node-role.kubernetes.io/control-plane"]; !marked || n.Labels["disk"] != "fast" || attempts != 2 {
		t.Errorf("after %d attempts the node has the labels %v", attempts, n.Labels)
	}
}
