package syncer

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestCarriesUntilEmptied tests a Cluster that is being removed. Deletions in it are copied until
// the splitter has removed its finalizer, and no longer.
func TestCarriesUntilEmptied(t *testing.T) {
	t.Parallel()
	deleted := metav1.NewTime(time.Unix(1, 0))
	for name, tc := range map[string]struct {
		deleted    *metav1.Time
		finalizers []string
		want       []string
	}{
		"in use":         {nil, []string{workloadv1alpha1.ClusterFinalizer}, []string{"deployments.apps"}},
		"being detached": {&deleted, []string{workloadv1alpha1.ClusterFinalizer}, nil},
		"being emptied":  {&deleted, []string{workloadv1alpha1.ClusterFinalizer, workloadv1alpha1.SplitterFinalizer}, []string{"deployments.apps"}},
	} {
		cluster := &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: tc.deleted, Finalizers: tc.finalizers}}
		cluster.Status.SyncedResources = []string{"deployments.apps"}
		if got := (&engine{config: &Config{}}).wanted(cluster); !slices.Equal(got, tc.want) {
			t.Errorf("%s: carries %v, want %v", name, got, tc.want)
		}
	}
}
