package crdpuller

import (
	"cmp"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func (r *Result) problem(t servedType, err error) {
	r.Problems = append(r.Problems, Problem{Resource: t.resource, Err: err})
}

// add checks the schema again by the rules of Kubernetes. An error of this package or of a
// cluster should be found here, and not when the CRD is published.
func (r *Result) add(t servedType, crd *apiextensionsv1.CustomResourceDefinition) {
	if err := checkStructural(crd.Spec.Versions[0].Schema.OpenAPIV3Schema); err != nil {
		r.problem(t, err)
		return
	}
	r.CRDs = append(r.CRDs, crd)
}

func (r *Result) sort() {
	slices.SortFunc(r.CRDs, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(r.Problems, func(a, b Problem) int { return cmp.Compare(a.Resource.String(), b.Resource.String()) })
}
