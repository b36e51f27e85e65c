package rikctltest

import (
	"encoding/json"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// WidgetImport returns the import of widgets from one cluster. The .spec of a widget has the
// given properties, as JSON, of which some are required.
func WidgetImport(location, properties string, required ...string) *apiresourcev1alpha1.APIResourceImport {
	names, err := json.Marshal(append([]string{}, required...))
	if err != nil {
		panic(err)
	}
	raw := fmt.Sprintf(`{"type":"object","required":["spec"],"properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"type":"object"},`+
		`"spec":{"type":"object","required":%s,"properties":%s}}}`, names, properties)
	i := &apiresourcev1alpha1.APIResourceImport{Spec: apiresourcev1alpha1.APIResourceImportSpec{
		Location: location, SchemaUpdateStrategy: apiresourcev1alpha1.UpdateUnpublished,
		CommonAPIResourceSpec: apiresourcev1alpha1.CommonAPIResourceSpec{
			GroupVersion:    apiresourcev1alpha1.GroupVersion{Group: "example.org", Version: "v1"},
			Scope:           apiextensionsv1.NamespaceScoped,
			Names:           apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			SubResources:    []apiresourcev1alpha1.SubResource{{Name: apiresourcev1alpha1.SubResourceStatus}},
			OpenAPIV3Schema: runtime.RawExtension{Raw: []byte(raw)},
		}}}
	i.Name = apiresourcev1alpha1.ImportName(i.Spec.GVR(), location)
	return i
}
