package crdpuller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// servedType is one type in the version that the cluster prefers, according to discovery.
type servedType struct {
	resource                schema.GroupVersionResource
	kind                    schema.GroupVersionKind
	namespaced              bool
	singular                string
	shortNames, categories  []string
	listable, status, scale bool
}

// crdName returns PLURAL.GROUP. The group of a CRD cannot be empty, so the core group has a name.
func (t servedType) crdName() string {
	group := t.resource.Group
	if group == "" {
		group = apiresourcev1alpha1.CoreGroup
	}
	return t.resource.Resource + "." + group
}

// catalog contains all types that a cluster serves.
type catalog struct {
	types   []servedType
	unknown []schema.GroupVersion
}

// preferred returns every resource in the first version of its group that has it. The preferred
// version of the group comes before the others. If a version could not be read, it hides the
// later versions, because it may contain their resources as preferred ones. If its position is
// not known, as in aggregated discovery, it hides the whole group.
func preferred(groups []*metav1.APIGroup, lists []*metav1.APIResourceList, failed map[schema.GroupVersion]error) catalog {
	byVersion := map[schema.GroupVersion][]metav1.APIResource{}
	for _, list := range lists {
		if gv, err := schema.ParseGroupVersion(list.GroupVersion); err == nil && failed[gv] == nil {
			byVersion[gv] = list.APIResources
		}
	}
	unknown := map[schema.GroupVersion]struct{}{}
	for gv := range failed {
		unknown[gv] = struct{}{}
	}
	var all catalog
	for _, group := range groups {
		seen := map[string]bool{}
		versions := versionsOf(group)
		hidden := hasUnplaced(group.Name, versions, failed)
		for _, version := range versions {
			gv := schema.GroupVersion{Group: group.Name, Version: version}
			resources, answered := byVersion[gv]
			if hidden = hidden || !answered; hidden {
				unknown[gv] = struct{}{}
				continue
			}
			for _, t := range typesOf(gv, resources) {
				if !seen[t.resource.Resource] {
					seen[t.resource.Resource] = true
					all.types = append(all.types, t)
				}
			}
		}
	}
	all.unknown = slices.SortedFunc(maps.Keys(unknown), func(a, b schema.GroupVersion) int { return cmp.Compare(a.String(), b.String()) })
	slices.SortFunc(all.types, func(a, b servedType) int { return cmp.Compare(a.crdName(), b.crdName()) })
	return all
}

// hasUnplaced reports whether a version of the group failed that is not in the list of versions.
func hasUnplaced(group string, versions []string, failed map[schema.GroupVersion]error) bool {
	for gv := range failed {
		if gv.Group == group && !slices.Contains(versions, gv.Version) {
			return true
		}
	}
	return false
}

// versionsOf returns the versions in order of preference.
func versionsOf(group *metav1.APIGroup) []string {
	var versions []string
	if first := group.PreferredVersion.Version; first != "" {
		versions = append(versions, first)
	}
	for _, v := range group.Versions {
		if !slices.Contains(versions, v.Version) {
			versions = append(versions, v.Version)
		}
	}
	return versions
}

// typesOf combines resources and their subresources.
func typesOf(gv schema.GroupVersion, resources []metav1.APIResource) []servedType {
	subresources := map[string]bool{}
	for _, r := range resources {
		subresources[r.Name] = true
	}
	var types []servedType
	for _, r := range resources {
		if !isName(gv, r.Name) {
			continue
		}
		types = append(types, servedType{
			resource:   gv.WithResource(r.Name),
			kind:       gv.WithKind(r.Kind),
			namespaced: r.Namespaced,
			singular:   cmp.Or(r.SingularName, strings.ToLower(r.Kind)),
			shortNames: r.ShortNames,
			categories: r.Categories,
			listable:   slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch"),
			status:     subresources[r.Name+"/status"],
			scale:      subresources[r.Name+"/scale"],
		})
	}
	return types
}

// isName rejects subresources, and names that no type can have. Other code builds the names of
// objects and files from them.
func isName(gv schema.GroupVersion, resource string) bool {
	return len(validation.IsDNS1035Label(resource)) == 0 && len(validation.IsDNS1035Label(gv.Version)) == 0 &&
		(gv.Group == "" || len(validation.IsDNS1123Subdomain(gv.Group)) == 0)
}

// selection contains the types that were requested.
type selection struct {
	types     []servedType
	problems  []Problem
	notServed []string
}

// choose selects the types with these names. Without names, it selects all types that can be
// listed and watched.
func choose(served catalog, names []string, skip func(schema.GroupVersionKind) bool) selection {
	if len(names) == 0 {
		var s selection
		for _, t := range served.types {
			if t.listable && !skip(t.kind) {
				s.types = append(s.types, t)
			}
		}
		return s
	}
	byName := map[schema.GroupResource]servedType{}
	for _, t := range served.types {
		byName[t.resource.GroupResource()] = t
	}
	var s selection
	asked := map[schema.GroupResource]bool{}
	for _, name := range names {
		wanted := parseName(name)
		if asked[wanted] {
			continue
		}
		asked[wanted] = true
		s.choose(name, wanted, byName, served.unknown, skip)
	}
	return s
}

func (s *selection) choose(name string, wanted schema.GroupResource, served map[schema.GroupResource]servedType, unknown []schema.GroupVersion, skip func(schema.GroupVersionKind) bool) {
	t, ok := served[wanted]
	switch {
	case !ok && slices.ContainsFunc(unknown, func(gv schema.GroupVersion) bool { return gv.Group == wanted.Group }):
		// The name may belong to an unknown group.
	case !ok:
		s.notServed = append(s.notServed, name)
	case skip(t.kind):
	case !t.listable:
		s.problems = append(s.problems, Problem{Resource: t.resource, Err: ErrNotWatchable})
	default:
		s.types = append(s.types, t)
	}
}

// parseName parses PLURAL or PLURAL.GROUP. The core group may have the name that it has in the
// names of CRDs.
func parseName(name string) schema.GroupResource {
	gr := schema.ParseGroupResource(strings.ToLower(name))
	if gr.Group == apiresourcev1alpha1.CoreGroup {
		gr.Group = ""
	}
	return gr
}

// byGroupVersion groups the types and keeps their order.
func byGroupVersion(types []servedType) [][]servedType {
	groups := map[schema.GroupVersion][]servedType{}
	var order []schema.GroupVersion
	for _, t := range types {
		gv := t.kind.GroupVersion()
		if _, ok := groups[gv]; !ok {
			order = append(order, gv)
		}
		groups[gv] = append(groups[gv], t)
	}
	grouped := make([][]servedType, len(order))
	for i, gv := range order {
		grouped[i] = groups[gv]
	}
	return grouped
}

// String returns the type and the error for logs.
func (p Problem) String() string { return fmt.Sprintf("%s: %v", p.Resource.GroupResource(), p.Err) }
