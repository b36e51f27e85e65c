package config

import (
	"context"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
)

func TestCRDs(t *testing.T) {
	t.Parallel()
	crds, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	if len(crds) != 4 {
		t.Fatalf("%d CRDs, want 4", len(crds))
	}
	for _, crd := range crds {
		if crd.Name != crd.Spec.Names.Plural+"."+crd.Spec.Group {
			t.Errorf("%s is called %s", crd.Spec.Names.Kind, crd.Name)
		}
		// A comment that was formatted may have lost a quote of a rule.
		apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
		internal := &apiextensions.CustomResourceDefinition{}
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil); err != nil {
			t.Fatal(err)
		}
		internal.Status.StoredVersions = []string{"v1alpha1"}
		for _, err := range validation.ValidateCustomResourceDefinition(context.Background(), internal) {
			t.Errorf("%s: %v", crd.Name, err)
		}
	}
}

// TestSchemasHaveOneOwner: who owns which field of a schema is not kept, because that
// takes as much room as the schema, in every import of every cluster.
func TestSchemasHaveOneOwner(t *testing.T) {
	t.Parallel()
	crds, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, crd := range crds {
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		if schema, ok := spec.Properties["openAPIV3Schema"]; ok {
			found++
			if schema.XMapType == nil || *schema.XMapType != "atomic" {
				t.Errorf("the schema in a %s has an owner for every field", crd.Spec.Names.Kind)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d types hold schemas, want 2", found)
	}
}
