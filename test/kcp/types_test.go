package kcp

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kcptest"
)

// TestReadyMeansItsTypesAreServed asks at once, and does not try again.
func TestReadyMeansItsTypesAreServed(t *testing.T) {
	t.Parallel()
	s := kcptest.Start(t)
	client, err := dynamic.NewForConfig(kcptest.LoopbackConfig(s))
	if err != nil {
		t.Fatal(err)
	}
	clusters := client.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters"))
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": workloadv1alpha1.SchemeGroupVersion.String(), "kind": "Cluster", "metadata": map[string]any{"name": "east"},
	}}
	if _, err := clusters.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Errorf("creating a Cluster: %v", err)
	}
	object.SetName("no.label")
	if _, err := clusters.Create(t.Context(), object, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("creating a Cluster whose name is no DNS label: %v, want it refused as invalid", err)
	}
}

// TestServedTypes: what a kcp serves of itself, and so what it does not.
func TestServedTypes(t *testing.T) {
	t.Parallel()
	client, err := discovery.NewDiscoveryClientForConfig(kcptest.Shared(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, list := range lists {
		for _, resource := range list.APIResources {
			got[list.GroupVersion] = append(got[list.GroupVersion], resource.Name)
		}
	}
	want := []string{
		"configmaps", "events", "namespaces", "namespaces/finalize", "namespaces/status", "persistentvolumeclaims",
		"persistentvolumeclaims/status", "resourcequotas", "resourcequotas/status", "secrets", "serviceaccounts",
		"serviceaccounts/token", "services", "services/status",
	}
	if diff := cmp.Diff(want, got["v1"]); diff != "" {
		t.Errorf("the core group (-want +got):\n%s", diff)
	}
	for _, group := range []string{"rik.dev/v1alpha1", "apps/v1"} {
		if got[group] != nil {
			t.Errorf("%s is served: %v", group, got[group])
		}
	}
	if got["workload.kcp.dev/v1alpha1"] == nil || got["apiresource.kcp.dev/v1alpha1"] == nil {
		t.Errorf("the types of a kcp are missing from %v", got)
	}
}
