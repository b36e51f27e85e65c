package cluster

import (
	"encoding/json"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/crdpuller"
)

// importsFrom returns the imports of a type of a cluster: one for each version.
func importsFrom(location string, owner metav1.OwnerReference, crd *apiextensionsv1.CustomResourceDefinition) ([]*apiresourcev1alpha1.APIResourceImport, error) {
	var imports []*apiresourcev1alpha1.APIResourceImport
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		if !version.Served {
			continue
		}
		common, err := commonOf(crd, version)
		if err != nil {
			return nil, err
		}
		gvr := common.GVR()
		annotations := map[string]string{apiresourcev1alpha1.APIVersionAnnotation: gvr.GroupVersion().String()}
		if left := crd.Annotations[apiresourcev1alpha1.VersionsAnnotation]; left != "" {
			annotations[apiresourcev1alpha1.VersionsAnnotation] = left
		}
		imports = append(imports, &apiresourcev1alpha1.APIResourceImport{
			ObjectMeta: metav1.ObjectMeta{
				Name:            apiresourcev1alpha1.ImportName(gvr, location),
				OwnerReferences: []metav1.OwnerReference{owner},
				Annotations:     annotations,
			},
			Spec: apiresourcev1alpha1.APIResourceImportSpec{CommonAPIResourceSpec: common, Location: location},
		})
	}
	return imports, nil
}

// commonOf describes one version of a type.
func commonOf(crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion) (apiresourcev1alpha1.CommonAPIResourceSpec, error) {
	common := apiresourcev1alpha1.CommonAPIResourceSpec{
		GroupVersion: apiresourcev1alpha1.GroupVersion{Group: crd.Spec.Group, Version: version.Name},
		Scope:        crd.Spec.Scope, Names: crd.Spec.Names,
		SubResources: subResourcesOf(version.Subresources), ColumnDefinitions: columnsOf(version.AdditionalPrinterColumns),
	}
	if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
		return common, fmt.Errorf("%s has no schema for version %s", crd.Name, version.Name)
	}
	raw, err := json.Marshal(version.Schema.OpenAPIV3Schema)
	if err != nil {
		return common, fmt.Errorf("storing the schema of %s: %w", crd.Name, err)
	}
	common.OpenAPIV3Schema = runtime.RawExtension{Raw: raw}
	return common, nil
}

func subResourcesOf(from *apiextensionsv1.CustomResourceSubresources) []apiresourcev1alpha1.SubResource {
	var list []apiresourcev1alpha1.SubResource
	if from == nil {
		return nil
	}
	if from.Scale != nil {
		list = append(list, apiresourcev1alpha1.SubResource{Name: apiresourcev1alpha1.SubResourceScale, Scale: from.Scale})
	}
	if from.Status != nil {
		list = append(list, apiresourcev1alpha1.SubResource{Name: apiresourcev1alpha1.SubResourceStatus})
	}
	return list
}

func columnsOf(from []apiextensionsv1.CustomResourceColumnDefinition) []apiresourcev1alpha1.ColumnDefinition {
	var list []apiresourcev1alpha1.ColumnDefinition
	for _, c := range from {
		list = append(list, apiresourcev1alpha1.ColumnDefinition{
			Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority, JSONPath: c.JSONPath,
		})
	}
	return list
}

// missing returns the imports of a cluster whose types it certainly does not offer, according to
// a pull. Types that the pull could not describe, or whose group it could not read, may exist.
// Types that were not requested are ignored.
func missing(imports []*apiresourcev1alpha1.APIResourceImport, names []string, pulled *crdpuller.Result) []*apiresourcev1alpha1.APIResourceImport {
	offered := map[schema.GroupVersionResource]bool{}
	for _, crd := range pulled.CRDs {
		for i := range crd.Spec.Versions {
			offered[schema.GroupVersionResource{Group: crd.Spec.Group, Version: crd.Spec.Versions[i].Name, Resource: crd.Spec.Names.Plural}] = crd.Spec.Versions[i].Served
		}
	}
	var gone []*apiresourcev1alpha1.APIResourceImport
	for _, i := range imports {
		gvr := i.Spec.GVR()
		asked := slices.Contains(names, gvr.GroupResource().String()) || slices.Contains(names, gvr.Resource)
		if asked && !offered[gvr] && !mayBeServed(gvr, pulled) {
			gone = append(gone, i)
		}
	}
	return gone
}

// mayBeServed reports whether a type may be served although a pull did not return it.
func mayBeServed(gvr schema.GroupVersionResource, pulled *crdpuller.Result) bool {
	unknown := slices.ContainsFunc(pulled.Unknown, func(gv schema.GroupVersion) bool {
		return gv.Group == gvr.Group && (gv.Version == gvr.Version || gv.Version == "")
	})
	return unknown || slices.ContainsFunc(pulled.Problems, func(p crdpuller.Problem) bool {
		return p.Resource.GroupResource() == gvr.GroupResource()
	})
}
