package syncerauth

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/dynamic/fake"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestWarnings: a user who sends an object to a Cluster that does not exist, or that does not
// accept its type, receives a warning.
func TestWarnings(t *testing.T) {
	t.Parallel()
	east := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"syncedResources": []any{"configmaps"}}}}
	east.SetAPIVersion(workloadv1alpha1.SchemeGroupVersion.String())
	east.SetKind("Cluster")
	east.SetName("east")
	young := &unstructured.Unstructured{Object: map[string]any{}}
	young.SetAPIVersion(east.GetAPIVersion())
	young.SetKind("Cluster")
	young.SetName("young")
	p := &Plugin{objects: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{clusterResource: "ClusterList"}, east, young)}
	to := func(name string) map[string]string { return map[string]string{workloadv1alpha1.ClusterLabel: name} }
	for name, tc := range map[string]struct {
		resource    string
		before, now map[string]string
		want        string
	}{
		"nowhere":                  {resource: "configmaps"},
		"to a Cluster":             {resource: "configmaps", now: to("east")},
		"to none":                  {resource: "configmaps", now: to("wset"), want: `the Cluster "wset" does not exist`},
		"to none, as one of many":  {resource: "configmaps", now: map[string]string{workloadv1alpha1.TargetLabelPrefix + "wset": "true"}, want: `the Cluster "wset" does not exist`},
		"it was so before":         {resource: "configmaps", before: to("wset"), now: to("wset")},
		"the type is not taken":    {resource: "services", now: to("east"), want: "does not accept services"},
		"the types are not known":  {resource: "services", now: to("young")},
		"a part of a divided root": {resource: "services", now: map[string]string{workloadv1alpha1.ClusterLabel: "wset", workloadv1alpha1.OwnedByLabel: "web"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "team", "x", schema.GroupVersionResource{Version: "v1", Resource: tc.resource}, "", admission.Create, nil, false, nil)
			got := strings.Join(p.warnings(t.Context(), a, &metav1.ObjectMeta{Labels: tc.before}, &metav1.ObjectMeta{Labels: tc.now}), "; ")
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("warnings() = %q, want %q", got, tc.want)
			}
		})
	}
}
