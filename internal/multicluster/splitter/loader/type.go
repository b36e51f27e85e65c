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
	// Path is where its replicas are; of use only if it is Scalable.
	Path     splitter.ScalePath
	Scalable bool
	// Reports is whether it has a status of its own, which clusters report.
	Reports bool
	// Rules are what is known of the type beside its schema, and BadRules why annotations of its
	// CRD add nothing to them.
	Rules    splitter.Rules
	BadRules string
}

// Needs are the objects that one of the type names, without those that it produces itself.
func (t Type) Needs(object *unstructured.Unstructured) ([]splitter.Need, error) {
	needs, err := splitter.Needs(object)
	products := t.Rules.Products(object)
	return slices.DeleteFunc(needs, func(n splitter.Need) bool { return isAmong(n, products) }), err
}

// isAmong reports whether a need is one of others, optional or not.
func isAmong(n splitter.Need, others []splitter.Need) bool {
	return slices.ContainsFunc(others, func(o splitter.Need) bool { return o.Kind == n.Kind && o.Name == n.Name })
}

// GVR is the type as it is asked for.
func (t Type) GVR() schema.GroupVersionResource { return t.GVK.GroupVersion().WithResource(t.Resource) }

// GroupResource is what a Cluster calls the type in its status.
func (t Type) GroupResource() schema.GroupResource { return t.GVR().GroupResource() }

// Division is how objects of the type are divided where nothing else is said.
func (t Type) Division() workloadv1alpha1.Division {
	return splitter.KindOf(t.GVK.GroupKind(), t.Scalable)
}

// Ingresses are not divided: an Ingress goes where its Services are.
var Ingresses = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}

// kept are the groups of a kcp's own objects.
var kept = []string{workloadv1alpha1.GroupName, apiresourcev1alpha1.GroupName}

// Types are the types that are divided, in the order of their names: the namespaced ones
// that negotiation serves or that clusters offer as well as a CRD made by hand. What a kcp
// serves by itself is not among them: it follows what needs it.
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

// typeOf is the type of a CRD that is served and stays, in the version that is stored.
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

// IsServed says whether objects of a CRD can be written, and will not go with it.
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

// path is a JSON path of plain fields, which is all that a CRD's scale may have.
func path(json string) []string {
	if json = strings.TrimPrefix(json, "."); json == "" {
		return nil
	}
	return strings.Split(json, ".")
}
