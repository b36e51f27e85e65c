package loader

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestNameIn tests the name of a root's object in a cluster.
func TestNameIn(t *testing.T) {
	t.Parallel()
	statefulSets := deployments
	statefulSets.GVK.Kind, statefulSets.Resource = "StatefulSet", "statefulsets"
	operators := things
	for name, tc := range map[string]struct {
		t      Type
		claims bool              // the root makes claims
		hints  map[string]string // annotations of the root
		// leaf is the annotations of the leaf in east, or nil without a leaf. ran is true if that
		// leaf has a status.
		leaf map[string]string
		ran  bool
		// east and west are the expected names there. The leaf is in east.
		east, west string
	}{
		"a StatefulSet":                   {statefulSets, true, nil, nil, false, "web", "web"},
		"an operator's type":              {operators, false, nil, nil, false, "web", "web"},
		"a Deployment":                    {deployments, false, nil, nil, false, "web--east", "web--west"},
		"a Deployment that asks for it":   {deployments, false, map[string]string{workloadv1alpha1.NamesAnnotation: "root"}, nil, false, "web", "web"},
		"a Deployment that is whole":      {deployments, false, map[string]string{workloadv1alpha1.HintPrefix + "divide": "whole"}, nil, false, "web", "web"},
		"a StatefulSet that is divided":   {statefulSets, true, map[string]string{workloadv1alpha1.HintPrefix + "divide": "replicas"}, nil, false, "web--east", "web--west"},
		"a StatefulSet that asks for it":  {statefulSets, true, map[string]string{workloadv1alpha1.NamesAnnotation: "leaf"}, nil, false, "web--east", "web--west"},
		"made as its root":                {statefulSets, true, nil, map[string]string{workloadv1alpha1.NameAnnotation: "web"}, true, "web", "web"},
		"made before, with data":          {statefulSets, true, nil, map[string]string{}, true, "web--east", "web--west"},
		"made before, and never ran":      {statefulSets, true, nil, map[string]string{}, false, "web--east", "web"},
		"made before, without data":       {statefulSets, false, nil, map[string]string{}, true, "web--east", "web"},
		"made before, the user decides":   {statefulSets, true, map[string]string{workloadv1alpha1.NamesAnnotation: "root"}, map[string]string{}, true, "web--east", "web"},
		"the leaf with data was deleted":  {statefulSets, true, map[string]string{"splitter.workloads.kcp.dev/progress": `{"leafNames":true}`}, nil, false, "web--east", "web--west"},
		"a leaf's name that is no root's": {statefulSets, true, nil, map[string]string{workloadv1alpha1.NameAnnotation: "other"}, false, "web--east", "web"},
	} {
		root, s := web(), newShop("east", "west")
		root.SetGroupVersionKind(tc.t.GVK)
		root.SetAnnotations(tc.hints)
		if tc.claims {
			_ = unstructured.SetNestedSlice(root.Object, []any{map[string]any{"metadata": map[string]any{"name": "data"}}}, "spec", "volumeClaimTemplates")
		}
		if tc.leaf != nil {
			leaf := part(t, root, "east")
			leaf.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(root, tc.t.GVK)})
			leaf.SetAnnotations(tc.leaf)
			if delete(leaf.Object, "status"); tc.ran {
				leaf.Object["status"] = map[string]any{"replicas": int64(1)}
			}
			s.leaves = []*unstructured.Unstructured{leaf}
		}
		w, err := Read(t.Context(), s, root, tc.t, time.Unix(100, 0))
		if err != nil {
			t.Fatal(err)
		}
		if east, west := w.NameIn("east"), w.NameIn("west"); east != tc.east || west != tc.west {
			t.Errorf("%s: it is called %s in east and %s in west, want %s and %s", name, east, west, tc.east, tc.west)
		}
	}
	root := web()
	root.SetAnnotations(map[string]string{workloadv1alpha1.NamesAnnotation: "mine"})
	if w, err := Read(t.Context(), newShop("east"), root, deployments, time.Unix(100, 0)); err != nil || len(w.Problems) != 1 {
		t.Errorf("a name of the user's own: %v, %v; want one problem", w.Problems, err)
	}
}

// TestReferencesHaveTheNameThere tests that a leaf refers to an object by the name that this
// object has in the same cluster. That name may follow older rules.
func TestReferencesHaveTheNameThere(t *testing.T) {
	t.Parallel()
	db := web()
	db.SetGroupVersionKind(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"})
	of := deployments
	of.GVK, of.Resource = db.GroupVersionKind(), "statefulsets"
	scaler := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"scaleTargetRef": map[string]any{"kind": "StatefulSet", "name": "web"}}}}
	to := Type{GVK: schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}, Resource: "scaledobjects"}
	scaler.SetGroupVersionKind(to.GVK)
	scaler.SetNamespace("shop")
	scaler.SetName("web")
	s := newShop("east", "west")
	s.related = []Related{{db, of}}
	old := part(t, db, "east")
	old.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(db, of.GVK)})
	s.leaves = []*unstructured.Unstructured{old}
	w, err := Read(t.Context(), s, scaler, to, time.Unix(100, 0))
	if err != nil {
		t.Fatal(err)
	}
	for cluster, want := range map[string]string{"east": "web--east", "west": "web"} {
		leaf := scaler.DeepCopy()
		w.Adapt(leaf, cluster)
		if got, _, _ := unstructured.NestedString(leaf.Object, "spec", "scaleTargetRef", "name"); got != want {
			t.Errorf("in %s it refers to %q, want %q", cluster, got, want)
		}
	}
}
