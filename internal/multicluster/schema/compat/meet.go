package compat

import (
	"maps"
	"reflect"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"

	"rik.dev/rik/internal/multicluster/negotiation/plan"
	"rik.dev/rik/internal/multicluster/schema"
)

// meet sets the CRD that both can hold.
func (r *Report) meet(before, after *apiextensionsv1.CustomResourceDefinition, offers, others map[string]schema.Offer) {
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   before.TypeMeta,
		ObjectMeta: commonMeta(before, after),
		Spec:       apiextensionsv1.CustomResourceDefinitionSpec{Group: before.Spec.Group, Scope: before.Spec.Scope},
	}
	possible := true
	for i := range before.Spec.Versions {
		v := &before.Spec.Versions[i]
		existing, served := offers[v.Name]
		if !served {
			continue
		}
		offered, stays := others[v.Name]
		if !stays {
			r.add(Version{Name: v.Name, Verdict: Removed, Reason: "OLD serves it, and NEW does not"})
			continue
		}
		agreement, obstacles := schema.Meet(existing, offered)
		if agreement == nil {
			r.add(Version{Name: v.Name, Verdict: Incompatible, Obstacles: obstaclesOf(obstacles)})
			possible = false
			continue
		}
		met, err := plan.VersionOf(&agreement.Spec)
		if err != nil {
			r.add(Version{Name: v.Name, Verdict: Incompatible, Reason: err.Error()})
			possible = false
			continue
		}
		other := versionNamed(after, v.Name)
		met.Deprecated = v.Deprecated || other.Deprecated
		if met.DeprecationWarning = other.DeprecationWarning; met.DeprecationWarning == nil {
			met.DeprecationWarning = v.DeprecationWarning
		}
		crd.Spec.Names, crd.Spec.Versions = agreement.Spec.Names, append(crd.Spec.Versions, met)
		r.add(Version{Name: v.Name, Verdict: Agreed, LeftOut: obstaclesOf(agreement.Dropped)})
	}
	r.addNew(after, offers, others)
	if !possible || len(crd.Spec.Versions) == 0 {
		return
	}
	r.convert(crd, before, after)
	store(crd, before, after)
	if object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd); err == nil {
		delete(object, "status")
		r.LCD = object
	}
}

// commonMeta keeps the metadata that both CRDs share.
func commonMeta(before, after *apiextensionsv1.CustomResourceDefinition) metav1.ObjectMeta {
	common := func(a, b map[string]string) map[string]string {
		kept := maps.Clone(a)
		maps.DeleteFunc(kept, func(key, value string) bool { return b[key] != value })
		return kept
	}
	meta := metav1.ObjectMeta{
		Name: before.Name, Labels: common(before.Labels, after.Labels), Annotations: common(before.Annotations, after.Annotations),
	}
	// Without this annotation, an API server refuses a CRD in a protected group of Kubernetes.
	const approved = apiextensionsv1.KubeAPIApprovedAnnotation
	if value, ok := after.Annotations[approved]; ok && meta.Annotations[approved] == "" {
		if meta.Annotations == nil {
			meta.Annotations = map[string]string{}
		}
		meta.Annotations[approved] = value
	}
	return meta
}

// convert keeps the conversion if it is the same in both.
func (r *Report) convert(crd, before, after *apiextensionsv1.CustomResourceDefinition) {
	none := &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	of := func(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceConversion {
		if crd.Spec.Conversion == nil {
			return none
		}
		return crd.Spec.Conversion
	}
	if reflect.DeepEqual(of(before), of(after)) {
		crd.Spec.Conversion = before.Spec.Conversion
		return
	}
	r.conversionDiffers = len(crd.Spec.Versions) > 1
}

// store chooses the storage version. It is the one of OLD, because objects may be stored in it.
// If the CRD does not have that version, it is the one of NEW, or else the one that kubectl
// prefers.
func store(crd, before, after *apiextensionsv1.CustomResourceDefinition) {
	chosen := 0
	for i := range crd.Spec.Versions {
		if version.CompareKubeAwareVersionStrings(crd.Spec.Versions[i].Name, crd.Spec.Versions[chosen].Name) > 0 {
			chosen = i
		}
	}
	for _, source := range []*apiextensionsv1.CustomResourceDefinition{after, before} {
		for i := range crd.Spec.Versions {
			if versionNamed(source, crd.Spec.Versions[i].Name).Storage {
				chosen = i
			}
		}
	}
	crd.Spec.Versions[chosen].Storage = true
}
