package access

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// aliases is a RESTMapper that accepts more words for types than the server's short names.
type aliases struct{ meta.RESTMapper }

var revisionWords = []string{"revision", "revisions", "rev", "revs"}

func alias(r schema.GroupVersionResource) schema.GroupVersionResource {
	if r.Group == "" && slices.Contains(revisionWords, r.Resource) {
		r.Group, r.Resource = rikv1alpha1.GroupName, "workloadrevisions"
	}
	return r
}

// KindFor implements meta.RESTMapper.
func (a aliases) KindFor(r schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return a.RESTMapper.KindFor(alias(r))
}

// KindsFor implements meta.RESTMapper.
func (a aliases) KindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return a.RESTMapper.KindsFor(alias(r))
}

// ResourceFor implements meta.RESTMapper.
func (a aliases) ResourceFor(r schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return a.RESTMapper.ResourceFor(alias(r))
}

// ResourcesFor implements meta.RESTMapper.
func (a aliases) ResourcesFor(r schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return a.RESTMapper.ResourcesFor(alias(r))
}

// Reset implements meta.ResettableRESTMapper: it discards what it has cached of the server's
// types.
func (a aliases) Reset() { meta.MaybeResetRESTMapper(a.RESTMapper) }
