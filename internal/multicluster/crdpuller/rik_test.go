package crdpuller_test

import (
	"slices"
	"testing"

	"rik.dev/rik/internal/testkit/apiprocess"
	"rik.dev/rik/internal/testkit/kube"
)

// TestRikCluster pulls from a cluster of rik's own, which is sent work as any other.
func TestRikCluster(t *testing.T) {
	server := apiprocess.Start(t)
	pulled := pull(t, server.Config)
	for _, want := range []string{"workloads.rik.dev", "instances.rik.dev", "configmaps.core"} {
		if !slices.Contains(names(pulled), want) {
			t.Errorf("pulled %v, want %s among them", names(pulled), want)
		}
	}
	if got := pull(t, server.Config, "pods"); len(got.CRDs) > 0 || !slices.Equal(got.NotServed, []string{"pods"}) {
		t.Errorf("pods of a rik cluster: pulled %v, not served %v", names(got), got.NotServed)
	}
	for _, p := range pulled.Problems {
		if p.Resource.Group == "rik.dev" {
			t.Errorf("a type of rik's own: %v", p)
		}
	}
	// Both offer the same configmaps.
	ours, theirs := outline(only(t, pull(t, server.Config, "configmaps"))), outline(only(t, pull(t, kube.Shared(t).Rest(), "configmaps")))
	if len(ours) != len(theirs) {
		t.Errorf("configmaps have %d fields here and %d in Kubernetes", len(ours), len(theirs))
	}
}
