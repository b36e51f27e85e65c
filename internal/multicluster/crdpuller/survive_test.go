package crdpuller_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"
	"sigs.k8s.io/randfill"
)

// TestNothingIsPruned fills objects of every built-in type with random values, and prunes them by
// the pulled schema as a server does. The schema must have every field of the type.
func TestNothingIsPruned(t *testing.T) {
	schemas := map[schema.GroupVersionKind]*structuralschema.Structural{}
	for _, crd := range pullAll(t).CRDs {
		gvk := schema.GroupVersionKind{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Kind: crd.Spec.Names.Kind}
		if scheme.Scheme.Recognizes(gvk) {
			schemas[gvk] = structuralOf(t, crd)
		}
	}
	kinds := make([]schema.GroupVersionKind, 0, len(schemas))
	for gvk := range schemas {
		kinds = append(kinds, gvk)
	}
	slices.SortFunc(kinds, func(a, b schema.GroupVersionKind) int {
		return slices.Compare([]string{a.Group, a.Kind}, []string{b.Group, b.Kind})
	})
	if len(kinds) < 50 {
		t.Fatalf("%d kinds are built in, want all of Kubernetes'", len(kinds))
	}
	rapid.Check(t, func(t *rapid.T) {
		gvk := rapid.SampledFrom(kinds).Draw(t, "kind")
		object := randomObject(t, gvk, rapid.Int64().Draw(t, "seed"))
		want := runtime.DeepCopyJSON(object)
		pruning.Prune(object, schemas[gvk], true)
		if diff := cmp.Diff(want, object); diff != "" {
			t.Fatalf("%s loses fields:\n%s", gvk.Kind, diff)
		}
	})
}

func structuralOf(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *structuralschema.Structural {
	t.Helper()
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &internal, nil); err != nil {
		t.Fatal(err)
	}
	s, err := structuralschema.NewStructural(&internal)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// randomObject returns any object that the Go type of the kind can contain, as JSON.
func randomObject(t *rapid.T, gvk schema.GroupVersionKind, seed int64) map[string]any {
	typed, err := scheme.Scheme.New(gvk)
	if err != nil {
		t.Fatal(err)
	}
	filler := randfill.NewWithSeed(seed).NilChance(0.3).NumElements(1, 2).MaxDepth(25).Funcs(
		func(q *resource.Quantity, _ randfill.Continue) { *q = resource.MustParse("100m") },
		func(i *intstr.IntOrString, c randfill.Continue) {
			*i = intstr.FromString("25%")
			if c.Bool() {
				*i = intstr.FromInt32(7)
			}
		},
		func(at *metav1.Time, _ randfill.Continue) { *at = metav1.Unix(1, 0) },
		func(at *metav1.MicroTime, _ randfill.Continue) { *at = metav1.MicroTime{Time: time.Unix(1, 0)} },
		func(d *metav1.Duration, _ randfill.Continue) { d.Duration = time.Second },
		func(m *metav1.ObjectMeta, _ randfill.Continue) { m.Name, m.Labels = "any", map[string]string{"a": "b"} },
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawString(`{"f:a":{}}`) },
		func(r *runtime.RawExtension, _ randfill.Continue) { r.Raw = []byte(`{"any":["thing"]}`) },
	)
	filler.Fill(typed)
	raw, err := json.Marshal(typed)
	if err != nil {
		t.Fatal(fmt.Errorf("writing a random %s: %w", gvk.Kind, err))
	}
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	object["apiVersion"], object["kind"] = gvk.GroupVersion().String(), gvk.Kind
	return object
}
