package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	multischema "rik.dev/rik/internal/multicluster/schema"
)

// approval allows a CRD to have a protected group of Kubernetes. The type is one of Kubernetes,
// and its schema is what the clusters agreed on.
const approval = "unapproved, negotiated between the clusters that serve the type"

// SpecOf returns one version of a CRD in the form of an import. It returns an error if the CRD
// does not serve the version.
func SpecOf(crd *apiextensionsv1.CustomResourceDefinition, version string) (*apiresourcev1alpha1.CommonAPIResourceSpec, error) {
	v := servedVersion(crd, version)
	if v == nil {
		return nil, fmt.Errorf("CRD %s does not serve version %s", crd.Name, version)
	}
	schema := &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	if v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
		schema = v.Schema.OpenAPIV3Schema
	}
	raw, err := canonical(schema)
	if err != nil {
		return nil, fmt.Errorf("writing the schema of CRD %s: %w", crd.Name, err)
	}
	spec := &apiresourcev1alpha1.CommonAPIResourceSpec{
		GroupVersion:    apiresourcev1alpha1.GroupVersion{Group: crd.Spec.Group, Version: v.Name},
		Scope:           crd.Spec.Scope,
		Names:           fullNames(*crd.Spec.Names.DeepCopy()),
		OpenAPIV3Schema: runtime.RawExtension{Raw: raw},
	}
	if s := v.Subresources; s != nil {
		if s.Scale != nil {
			spec.SubResources = append(spec.SubResources, apiresourcev1alpha1.SubResource{
				Name: apiresourcev1alpha1.SubResourceScale, Scale: s.Scale.DeepCopy()})
		}
		if s.Status != nil {
			spec.SubResources = append(spec.SubResources, apiresourcev1alpha1.SubResource{Name: apiresourcev1alpha1.SubResourceStatus})
		}
	}
	for _, c := range v.AdditionalPrinterColumns {
		spec.ColumnDefinitions = append(spec.ColumnDefinitions, apiresourcev1alpha1.ColumnDefinition{
			Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority, JSONPath: c.JSONPath})
	}
	return spec, nil
}

// VersionOf returns a version of a CRD that serves a spec.
func VersionOf(spec *apiresourcev1alpha1.CommonAPIResourceSpec) (apiextensionsv1.CustomResourceDefinitionVersion, error) {
	schema, err := multischema.Parse(spec.OpenAPIV3Schema)
	if err != nil {
		return apiextensionsv1.CustomResourceDefinitionVersion{}, err
	}
	v := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: spec.GroupVersion.Version, Served: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema},
	}
	for _, s := range spec.SubResources {
		if v.Subresources == nil {
			v.Subresources = &apiextensionsv1.CustomResourceSubresources{}
		}
		switch s.Name {
		case apiresourcev1alpha1.SubResourceStatus:
			v.Subresources.Status = &apiextensionsv1.CustomResourceSubresourceStatus{}
		case apiresourcev1alpha1.SubResourceScale:
			v.Subresources.Scale = s.Scale.DeepCopy()
		}
	}
	for _, c := range spec.ColumnDefinitions {
		v.AdditionalPrinterColumns = append(v.AdditionalPrinterColumns, apiextensionsv1.CustomResourceColumnDefinition{
			Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority, JSONPath: c.JSONPath})
	}
	return v, nil
}

// normal returns a spec in the form in which it is read back from a CRD, so that equal specs have
// equal bytes.
func normal(spec *apiresourcev1alpha1.CommonAPIResourceSpec) (*apiresourcev1alpha1.CommonAPIResourceSpec, error) {
	v, err := VersionOf(spec)
	if err != nil {
		return nil, err
	}
	return SpecOf(&apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: spec.GroupVersion.Group, Scope: spec.Scope, Names: spec.Names,
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{v},
	}}, v.Name)
}

// canonical writes a schema with sorted keys, even in defaults and enums, and with numbers in the
// form of the API server.
func canonical(schema *apiextensionsv1.JSONSchemaProps) ([]byte, error) {
	data, err := json.Marshal(schema)
	if err != nil {
		return nil, err
	}
	var value any
	if err := utiljson.Unmarshal(data, &value); err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

// fullNames fills in the default names, as the API server does.
func fullNames(names apiextensionsv1.CustomResourceDefinitionNames) apiextensionsv1.CustomResourceDefinitionNames {
	if names.Singular == "" {
		names.Singular = strings.ToLower(names.Kind)
	}
	if names.ListKind == "" {
		names.ListKind = names.Kind + "List"
	}
	if len(names.ShortNames) == 0 {
		names.ShortNames = nil
	}
	if len(names.Categories) == 0 {
		names.Categories = nil
	}
	return names
}

// servedVersion returns a version that a CRD serves, or nil if it does not serve it.
func servedVersion(crd *apiextensionsv1.CustomResourceDefinition, version string) *apiextensionsv1.CustomResourceDefinitionVersion {
	if crd == nil {
		return nil
	}
	for i := range crd.Spec.Versions {
		if v := &crd.Spec.Versions[i]; v.Name == version && v.Served {
			return v
		}
	}
	return nil
}

// negotiated reports whether negotiation created a CRD.
func negotiated(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Annotations[apiresourcev1alpha1.NegotiatedAnnotation] == "true" || slices.ContainsFunc(crd.OwnerReferences, isOwner)
}

// ending reports whether a CRD, with all its objects, is being deleted.
func ending(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.DeletionTimestamp != nil || apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating)
}
