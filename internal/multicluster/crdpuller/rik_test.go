package crdpuller_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/negotiation/plan"
	"rik.dev/rik/internal/multicluster/schema"
	"rik.dev/rik/internal/testkit/apiprocess"
	"rik.dev/rik/internal/testkit/kube"
)

// TestRikCluster pulls from a rik cluster, which kcps use like any other cluster.
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
	t.Run("deployments", func(t *testing.T) { rikDeployments(t, server.Config) })
}

// rikDeployments tests that a rik cluster and a Kubernetes cluster offer the same Deployment. A
// Deployment that is valid for both can go to either.
func rikDeployments(t *testing.T, rik *rest.Config) {
	offer := func(from string, config *rest.Config) schema.Offer {
		crd := only(t, pull(t, config, "deployments.apps"))
		spec, err := plan.SpecOf(crd, "v1")
		if err != nil {
			t.Fatal(err)
		}
		return schema.Offer{Location: from, Spec: *spec}
	}
	ours, theirs := offer("rik", rik), offer("kubernetes", kube.Shared(t).Rest())
	if len(ours.Spec.SubResources) != 2 {
		t.Errorf("subresources: %v, want status and scale", ours.Spec.SubResources)
	}
	agreed, obstacles := schema.Meet(ours, theirs)
	if agreed == nil || len(obstacles) > 0 || len(agreed.Dropped) > 0 {
		t.Fatalf("negotiation: obstacles %v, agreement %v", obstacles, agreed)
	}
	if diff := cmp.Diff(string(theirs.Spec.OpenAPIV3Schema.Raw), string(ours.Spec.OpenAPIV3Schema.Raw)); diff != "" {
		t.Errorf("the schemas differ (-kubernetes +rik): %.2000s", diff)
	}
}
