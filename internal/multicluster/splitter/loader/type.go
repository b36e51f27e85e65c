package loader

import (
	"cmp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// Type is a type whose objects are divided.
type Type struct {
	GVK      schema.GroupVersionKind
	Resource string
	// Path is the path of its replicas. It is valid only if Scalable is true.
	Path     splitter.ScalePath
	Scalable bool
	// Reports is true if the type has a status subresource, which clusters report.
	Reports bool
	// Rules are facts about the type that its schema does not contain. BadRules is the error in
	// the annotations of its CRD, or empty.
	Rules    splitter.Rules
	BadRules string
}

// Needs returns the objects that an object of the type needs, except those that it produces.
func (t Type) Needs(object *unstructured.Unstructured) ([]splitter.Need, error) {
	needs, err := splitter.Needs(object)
	products := t.Rules.Products(object)
	return slices.DeleteFunc(needs, func(n splitter.Need) bool { return isAmong(n, products) }), err
}

// isAmong reports whether a need is in a list, optional or not.
func isAmong(n splitter.Need, others []splitter.Need) bool {
	return slices.ContainsFunc(others, func(o splitter.Need) bool { return o.Kind == n.Kind && o.Name == n.Name })
}

// GVR returns the group, version and resource of the type.
func (t Type) GVR() schema.GroupVersionResource { return t.GVK.GroupVersion().WithResource(t.Resource) }

// GroupResource returns the name of the type in the status of a Cluster.
func (t Type) GroupResource() schema.GroupResource { return t.GVR().GroupResource() }

// Division returns how objects of the type are divided by default.
func (t Type) Division() workloadv1alpha1.Division {
	return splitter.KindOf(t.GVK.GroupKind(), t.Scalable)
}

// Ingresses are not divided. An Ingress goes to the clusters of its Services.
var Ingresses = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}

// kept are the API groups of the kcp itself.
var kept = []string{workloadv1alpha1.GroupName, apiresourcev1alpha1.GroupName}

// Types returns the types that are divided, sorted by name. These are the namespaced types that
// negotiation serves, and the types of manual CRDs that clusters offer too. Types that every kcp
// serves are not included, because their objects follow the objects that need them.
func Types(crds []*apiextensionsv1.CustomResourceDefinition, negotiated []*apiresourcev1alpha1.NegotiatedAPIResource) []Type {
	offered := map[schema.GroupResource]bool{}
	for _, n := range negotiated {
		if n.Spec.Publish {
			offered[n.Spec.GVR().GroupResource()] = true
		}
	}
	var types []Type
	for _, crd := range crds {
		resource := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
		if !offered[resource] && crd.Annotations[apiresourcev1alpha1.NegotiatedAnnotation] != "true" {
			continue
		}
		if t, ok := typeOf(crd); ok && resource != Ingresses {
			types = append(types, t)
		}
	}
	slices.SortFunc(types, func(a, b Type) int {
		return cmp.Compare(a.GroupResource().String(), b.GroupResource().String())
	})
	return types
}

// typeOf returns the type of a CRD that is served and not being deleted, in its storage version.
func typeOf(crd *apiextensionsv1.CustomResourceDefinition) (Type, bool) {
	if crd.Spec.Scope != apiextensionsv1.NamespaceScoped || slices.Contains(kept, crd.Spec.Group) || !IsServed(crd) {
		return Type{}, false
	}
	var version *apiextensionsv1.CustomResourceDefinitionVersion
	for i := range crd.Spec.Versions {
		if v := &crd.Spec.Versions[i]; v.Served && (version == nil || v.Storage) {
			version = v
		}
	}
	if version == nil {
		return Type{}, false
	}
	t := Type{
		GVK:      schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind},
		Resource: crd.Spec.Names.Plural,
	}
	var err error
	if t.Rules, err = splitter.RulesOf(t.GVK.GroupKind(), crd.Annotations); err != nil {
		t.BadRules = err.Error()
	}
	if version.Subresources == nil {
		return t, true
	}
	t.Reports = version.Subresources.Status != nil
	if scale := version.Subresources.Scale; scale != nil {
		t.Scalable = true
		t.Path = splitter.ScalePath{Spec: path(scale.SpecReplicasPath), Status: path(scale.StatusReplicasPath)}
	}
	return t, true
}

// IsServed reports whether objects of a CRD can be written, and the CRD is not being deleted.
func IsServed(crd *apiextensionsv1.CustomResourceDefinition) bool {
	established := false
	for _, c := range crd.Status.Conditions {
		switch {
		case c.Type == apiextensionsv1.Established:
			established = c.Status == apiextensionsv1.ConditionTrue
		case c.Type == apiextensionsv1.Terminating && c.Status == apiextensionsv1.ConditionTrue:
			return false
		}
	}
	return established && crd.DeletionTimestamp == nil
}

// path splits a JSON path of plain fields. The scale subresource of a CRD allows no other paths.
func path(json string) []string {
	if json = strings.TrimPrefix(json, "."); json == "" {
		return nil
	}
	return strings.Split(json, ".")
}
