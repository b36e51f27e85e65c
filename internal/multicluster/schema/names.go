package schema

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

func joined(names []string) string { return strings.Join(names, ", ") }

// meetNames meets everything except the schema. why contains the obstacles that prevent an
// agreement. A subresource that not all offers have is dropped.
func meetNames(offers []Offer, out *apiresourcev1alpha1.CommonAPIResourceSpec) (why, dropped []apiresourcev1alpha1.Obstacle) {
	first := offers[0].Spec
	out.GroupVersion, out.Scope, out.Names = first.GroupVersion, first.Scope, withDefaults(first.Names)
	for _, fact := range []struct {
		path string
		of   func(*apiresourcev1alpha1.CommonAPIResourceSpec) string
	}{
		{groupVersionPath, func(s *apiresourcev1alpha1.CommonAPIResourceSpec) string {
			return s.GroupVersion.Group + "/" + s.GroupVersion.Version
		}},
		{scopePath, func(s *apiresourcev1alpha1.CommonAPIResourceSpec) string { return string(s.Scope) }},
		{namesPath + "plural", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) string { return s.Names.Plural }},
		{namesPath + "kind", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) string { return s.Names.Kind }},
		{namesPath + "singular", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) string { return withDefaults(s.Names).Singular }},
		{namesPath + "listKind", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) string { return withDefaults(s.Names).ListKind }},
	} {
		if slices.ContainsFunc(offers, func(o Offer) bool { return fact.of(&o.Spec) != fact.of(&first) }) {
			why = append(why, obstacle(fact.path, facts(offers), "it is %s",
				each(facts(offers), func(m *member) string { return fact.of(m.spec) })))
		}
	}
	out.Names.ShortNames = meetSets(offers, func(s *apiresourcev1alpha1.CommonAPIResourceSpec) []string { return s.Names.ShortNames })
	out.Names.Categories = meetSets(offers, func(s *apiresourcev1alpha1.CommonAPIResourceSpec) []string { return s.Names.Categories })
	out.SubResources, dropped = meetSubResources(offers)
	out.ColumnDefinitions = meetColumns(offers)
	return why, dropped
}

// facts returns the offers as members without a schema.
func facts(offers []Offer) []*member {
	ms := make([]*member, len(offers))
	for i := range offers {
		ms[i] = &member{location: offers[i].Location, spec: &offers[i].Spec}
	}
	return ms
}

// withDefaults fills in the names that a CRD may leave out.
func withDefaults(names apiextensionsv1.CustomResourceDefinitionNames) apiextensionsv1.CustomResourceDefinitionNames {
	names.Singular = cmp.Or(names.Singular, strings.ToLower(names.Kind))
	names.ListKind = cmp.Or(names.ListKind, names.Kind+"List")
	return names
}

// meetSets returns the elements that are in the set of every offer.
func meetSets(offers []Offer, of func(*apiresourcev1alpha1.CommonAPIResourceSpec) []string) []string {
	all := sortedSet(of(&offers[0].Spec))
	for i := range offers[1:] {
		other := of(&offers[i+1].Spec)
		all = slices.DeleteFunc(all, func(v string) bool { return !slices.Contains(other, v) })
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// meetSubResources returns the subresources that are equal in all offers.
func meetSubResources(offers []Offer) (kept []apiresourcev1alpha1.SubResource, dropped []apiresourcev1alpha1.Obstacle) {
	names := map[string]bool{}
	for i := range offers {
		for _, s := range offers[i].Spec.SubResources {
			names[s.Name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		say := func(m *member) string { return subResourceName(m.spec, name) }
		ms := facts(offers)
		if slices.ContainsFunc(ms, func(m *member) bool { return say(m) != say(ms[0]) }) {
			dropped = append(dropped, obstacle(subResourcePath+name, ms, "it is %s", each(ms, say)))
			continue
		}
		sub := subResource(&offers[0].Spec, name).DeepCopy()
		if sub.Scale != nil && sub.Scale.LabelSelectorPath != nil && *sub.Scale.LabelSelectorPath == "" {
			sub.Scale.LabelSelectorPath = nil
		}
		kept = append(kept, *sub)
	}
	return kept, dropped
}

func subResource(s *apiresourcev1alpha1.CommonAPIResourceSpec, name string) *apiresourcev1alpha1.SubResource {
	for i := range s.SubResources {
		if s.SubResources[i].Name == name {
			return &s.SubResources[i]
		}
	}
	return nil
}

func subResourceName(s *apiresourcev1alpha1.CommonAPIResourceSpec, name string) string {
	sub := subResource(s, name)
	if sub == nil {
		return "not served"
	}
	if sub.Scale == nil {
		return "served"
	}
	said := "served with " + sub.Scale.SpecReplicasPath + " and " + sub.Scale.StatusReplicasPath
	if sub.Scale.LabelSelectorPath != nil && *sub.Scale.LabelSelectorPath != "" {
		said += " selected by " + *sub.Scale.LabelSelectorPath
	}
	return said
}

// meetColumns keeps the columns and their order if all offers have the same. Otherwise it returns
// every column of any offer once, sorted by priority and name.
func meetColumns(offers []Offer) []apiresourcev1alpha1.ColumnDefinition {
	first := offers[0].Spec.ColumnDefinitions
	if !slices.ContainsFunc(offers, func(o Offer) bool { return !slices.Equal(o.Spec.ColumnDefinitions, first) }) {
		return slices.Clone(first)
	}
	columns := map[string]apiresourcev1alpha1.ColumnDefinition{}
	for i := range offers {
		for _, c := range offers[i].Spec.ColumnDefinitions {
			if other, ok := columns[c.Name]; !ok || encode(c) < encode(other) {
				columns[c.Name] = c
			}
		}
	}
	return slices.SortedFunc(maps.Values(columns), func(a, b apiresourcev1alpha1.ColumnDefinition) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
}

// subResourcePath is the prefix of the path of an obstacle in a subresource.
const subResourcePath = ".subresources."

// The other paths of obstacles that are not in the schema.
const (
	groupVersionPath = ".groupVersion"
	scopePath        = ".scope"
	namesPath        = ".names."
)

// isOfNames reports whether an obstacle is not in the schema. No document can be an example of it.
func isOfNames(path string) bool {
	return strings.HasPrefix(path, subResourcePath) || strings.HasPrefix(path, namesPath) || path == groupVersionPath || path == scopePath
}
