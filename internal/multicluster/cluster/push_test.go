package cluster_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// TestPushModeCarries runs the syncer in the controller, changes its credentials while it runs,
// and unregisters the cluster.
func TestPushModeCarries(t *testing.T) {
	t.Parallel()
	physical := kube.Shared(t)
	s := newSite(t, nil)
	credentials := secret(physical.Kubeconfig())
	s.create(t, credentials)
	registered := bySecret("east")
	registered.Spec.SyncMode = workloadv1alpha1.SyncPush
	s.create(t, registered)
	s.agree(t, "configmaps.east.v1.core")
	s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)
	s.awaitEvent(t, "east", corev1.EventTypeNormal, "SyncerStarted")
	s.carries(t, physical, "first")

	credentials.Data["kubeconfig"] = withToken(t, physical.Kubeconfig(), accountToken(t, physical))
	if err := s.upstream.Update(t.Context(), credentials); err != nil {
		t.Fatal(err)
	}
	s.carries(t, physical, "second")
	s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)

	if err := s.upstream.Delete(t.Context(), registered); err != nil {
		t.Fatal(err)
	}
	s.gone(t, registered)
	for _, name := range []string{"first", "second"} {
		if err := findDownstream(t.Context(), physical, name); err != nil {
			t.Errorf("detaching took from the cluster: %v", err)
		}
		left := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
		if err := s.upstream.Delete(t.Context(), left); err != nil {
			t.Fatal(err)
		}
		s.gone(t, left)
	}
}

// carries creates a ConfigMap for the cluster and waits until it is there.
func (s *site) carries(t *testing.T, physical *kube.Cluster, name string) {
	t.Helper()
	s.create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{workloadv1alpha1.ClusterLabel: "east"},
	}})
	poll.Until(t, kube.Timeout, name+" is carried", func(ctx context.Context) error {
		held := &corev1.ConfigMap{}
		if err := s.upstream.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, held); err != nil {
			return err
		}
		if err := findDownstream(ctx, physical, name); err != nil {
			return fmt.Errorf("%w; upstream it has the finalizers %v and the annotations %v", err, held.Finalizers, held.Annotations)
		}
		return nil
	})
}

func findDownstream(ctx context.Context, physical *kube.Cluster, name string) error {
	list, err := physical.Client().CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err == nil && len(list.Items) != 1 {
		err = fmt.Errorf("%d ConfigMaps named %s in the cluster", len(list.Items), name)
	}
	return err
}
