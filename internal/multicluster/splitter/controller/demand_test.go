package controller

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/follower"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// TestLeafCountsBeforeItsTypeIsRead tests a leaf that is announced while the other objects of its
// type are still being read. It is not announced again. An earlier version never sent what it
// needs.
func TestLeafCountsBeforeItsTypeIsRead(t *testing.T) {
	t.Parallel()
	deployments := loader.Type{
		GVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Resource: "deployments",
		Path: splitter.ScalePath{Spec: []string{"spec", "replicas"}, Status: []string{"status", "replicas"}},
	}
	k, err := newKind(nil, deployments, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	leaf := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"spec": map[string]any{"replicas": int64(1), "template": map[string]any{"spec": map[string]any{
			"volumes": []any{map[string]any{"name": "v", "configMap": map[string]any{"name": "settings"}}},
		}}},
	}}
	leaf.SetNamespace("default")
	leaf.SetName("web--east")
	leaf.SetLabels(map[string]string{
		workloadv1alpha1.OwnedByLabel: "web", workloadv1alpha1.ClusterLabel: "east", workloadv1alpha1.TargetLabelPrefix + "east": "true",
	})
	e, err := newEntry(leaf, deployments)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.GetIndexer().Add(e); err != nil {
		t.Fatal(err)
	}
	if k.HasSynced() {
		t.Fatal("a type that was never read is said to be read")
	}
	c := &Controller{kinds: map[schema.GroupResource]*kind{deployments.GroupResource(): k}}
	got := leaves{c}.Needing(key.Follower{Kind: splitter.KindConfigMap, Namespace: "default", Name: "settings"}, nil)
	want := []follower.Demand{{Clusters: []string{"east"}, Types: []string{"deployments.apps"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the demand is not that of the leaf (-want +got):\n%s", diff)
	}
}
