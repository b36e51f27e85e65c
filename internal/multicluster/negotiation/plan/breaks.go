package plan

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	multischema "rik.dev/rik/internal/multicluster/schema"
)

// Harm returns the questions about the stored objects that must be answered before a CRD changes.
// The change is harmless if every answer is nil. next is nil if the CRD is deleted.
func Harm(before, next *apiextensionsv1.CustomResourceDefinition) ([]Question, error) {
	if !apihelpers.IsCRDConditionTrue(before, apiextensionsv1.Established) {
		return nil, nil // It was never served, so nothing can be stored.
	}
	if next == nil || slices.ContainsFunc(before.Status.StoredVersions, func(v string) bool { return !slices.Contains(next.Status.StoredVersions, v) }) {
		return []Question{{Key: storedKey}}, nil
	}
	var questions []Question
	for i := range next.Spec.Versions {
		v := &next.Spec.Versions[i]
		if !v.Served {
			continue
		}
		spec, err := SpecOf(next, v.Name)
		if err != nil {
			return nil, err
		}
		if harmless, err := widens(before, spec); harmless || err != nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		key, err := fitKey(spec)
		if err != nil {
			return nil, err
		}
		questions = append(questions, Question{Key: key, Spec: spec})
	}
	return questions, nil
}

// widens reports whether every object that is valid for a CRD's version is also valid under a
// spec and keeps all its fields.
func widens(before *apiextensionsv1.CustomResourceDefinition, spec *apiresourcev1alpha1.CommonAPIResourceSpec) (bool, error) {
	if servedVersion(before, spec.GroupVersion.Version) == nil {
		return false, nil
	}
	was, err := SpecOf(before, spec.GroupVersion.Version)
	if err != nil {
		return false, fmt.Errorf("reading what is served: %w", err)
	}
	return equal(was, spec) || multischema.IsCompatible(multischema.Offer{Spec: *was}, multischema.Offer{Spec: *spec}), nil
}
