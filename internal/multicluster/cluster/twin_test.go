package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// TestKCPInItself tests that a kcp which is registered in itself is refused. Nothing is imported
// from it or synced to it.
func TestKCPInItself(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *cluster.Config) { c.Mode = workloadv1alpha1.SyncPush })
	kubeconfig, err := os.ReadFile(filepath.Join(s.kcp.DataDir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	s.create(t, secret(kubeconfig))
	s.create(t, bySecret("east"))
	seen := s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonOwnKCP)
	if imports, err := s.imports(t.Context(), "east"); err != nil || len(imports) > 0 || len(seen.Status.SyncedResources) > 0 {
		t.Errorf("imports %v, %v, synced %v", imports, err, seen.Status.SyncedResources)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "loop", Labels: map[string]string{workloadv1alpha1.ClusterLabel: "east"}}}
	s.create(t, object)
	namespaces := &corev1.NamespaceList{}
	if err := s.upstream.List(t.Context(), namespaces); err != nil {
		t.Fatal(err)
	}
	for _, ns := range namespaces.Items {
		if ns.Annotations[workloadv1alpha1.LocatorAnnotation] != "" {
			t.Errorf("the namespace %s was made for the kcp in itself", ns.Name)
		}
	}
	if err := s.upstream.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// TestOneClusterUnderTwoNames tests that the younger of two Clusters with the same physical
// cluster reports this, until the older one is unregistered.
func TestOneClusterUnderTwoNames(t *testing.T) {
	t.Parallel()
	physical := kube.Shared(t)
	s := newSite(t, nil)
	s.create(t, secret(physical.Kubeconfig()))
	s.create(t, bySecret("first"))
	is := func(name, want string) {
		t.Helper()
		poll.Until(t, kube.Timeout, fmt.Sprintf("%s is the same as %q", name, want), func(ctx context.Context) error {
			c, err := s.get(ctx, name)
			if err == nil && (c.Status.UID == "" || c.Status.SameAs != want) {
				err = fmt.Errorf("it is the same as %q, its UID is %q", c.Status.SameAs, c.Status.UID)
			}
			return err
		})
	}
	is("first", "")
	s.create(t, bySecret("second"))
	is("second", "first")
	is("first", "")
	if err := s.upstream.Delete(t.Context(), bySecret("first")); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	s.gone(t, bySecret("first"))
	is("second", "")
}
