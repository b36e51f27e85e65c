package served

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/pki"
)

// AsSyncer connects as the syncer of the existing Cluster with that name.
func (s *Server) AsSyncer(tb testing.TB, cluster string) *rest.Config {
	tb.Helper()
	objects, err := metadata.NewForConfig(s.Config)
	if err != nil {
		tb.Fatal(err)
	}
	found, err := objects.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")).Get(tb.Context(), cluster, metav1.GetOptions{})
	if err != nil {
		tb.Fatalf("looking for the Cluster of a syncer: %v", err)
	}
	return s.AsSyncerOf(tb, cluster, found.UID)
}

// AsSyncerOf connects as the syncer of a Cluster with that UID. The Cluster need not exist.
func (s *Server) AsSyncerOf(tb testing.TB, cluster string, uid types.UID) *rest.Config {
	tb.Helper()
	return s.As(tb, pki.User(workloadv1alpha1.SyncerUserPrefix+cluster, string(uid)))
}
