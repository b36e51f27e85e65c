package loader

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestYield tests that a leaf yields its replicas in clusters that have an autoscaler of the kcp
// which refers to its root, unless the root sets something else.
func TestYield(t *testing.T) {
	t.Parallel()
	hpas := typed("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
	scaled := typed("keda.sh", "ScaledObject", "scaledobjects")
	vpas := typed("autoscaling.k8s.io", "VerticalPodAutoscaler", "verticalpodautoscalers")
	target := func(field, kind, name string) map[string]any {
		return map[string]any{field: map[string]any{"apiVersion": "apps/v1", "kind": kind, "name": name}}
	}
	for name, tc := range map[string]struct {
		scaler Type
		spec   map[string]any
		said   string // the annotation of the root
		path   []string
		east   string
	}{
		"an autoscaler":               {hpas, target("scaleTargetRef", "Deployment", "web"), "", nil, "spec.replicas"},
		"KEDA, without a kind":        {scaled, map[string]any{"scaleTargetRef": map[string]any{"name": "web"}}, "", nil, "spec.replicas"},
		"where replicas are":          {hpas, target("scaleTargetRef", "Deployment", "web"), "", []string{"spec", "size"}, "spec.size"},
		"of another name":             {hpas, target("scaleTargetRef", "Deployment", "api"), "", nil, ""},
		"of another kind":             {hpas, target("scaleTargetRef", "StatefulSet", "web"), "", nil, ""},
		"what does not set replicas":  {vpas, target("targetRef", "Deployment", "web"), "", nil, ""},
		"the root gives nothing away": {hpas, target("scaleTargetRef", "Deployment", "web"), workloadv1alpha1.YieldNone, nil, workloadv1alpha1.YieldNone},
		"the root says so itself":     {hpas, target("scaleTargetRef", "Deployment", "web"), ".spec.replicas", nil, ".spec.replicas"},
		"the root gives more away":    {hpas, target("scaleTargetRef", "Deployment", "web"), "spec.paused", nil, "spec.paused,spec.replicas"},
	} {
		root, s, kind := web(), newShop("east", "west"), deployments
		kind.Path.Spec = tc.path
		if tc.said != "" {
			root.SetAnnotations(map[string]string{workloadv1alpha1.YieldAnnotation: tc.said})
		}
		scaler := of(tc.scaler, "web", tc.spec)
		leaf := part(t, scaler, "east")
		leaf.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(scaler, tc.scaler.GVK)})
		s.related, s.leaves = []Related{{scaler, tc.scaler}}, []*unstructured.Unstructured{leaf}
		w, err := Read(t.Context(), s, root, kind, time.Unix(100, 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.ReadScalers(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if east, west := w.Yield("east"), w.Yield("west"); east != tc.east || west != tc.said {
			t.Errorf("%s: the leaf in east yields %q and that in west %q, want %q and %q", name, east, west, tc.east, tc.said)
		}
	}
}

// TestNothingIsAutoscaled tests that a root with 0 replicas stops even where an autoscaler sets
// the replicas.
func TestNothingIsAutoscaled(t *testing.T) {
	t.Parallel()
	for replicas, want := range map[int64]bool{0: false, 10: true} {
		root, s := web(), newShop("east")
		root.SetAnnotations(map[string]string{workloadv1alpha1.YieldAnnotation: "spec.replicas"})
		leaf := part(t, root, "east")
		leaf.SetAnnotations(root.GetAnnotations())
		root.Object["spec"].(map[string]any)["replicas"] = replicas
		s.leaves = []*unstructured.Unstructured{leaf}
		if w := read(t, s, root); len(w.State.Leaves) != 1 || w.State.Leaves[0].Autoscaled != want {
			t.Errorf("of %d replicas the leaves are %+v, want autoscaled %v", replicas, w.State.Leaves, want)
		}
	}
}
