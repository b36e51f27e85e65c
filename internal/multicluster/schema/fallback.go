package schema

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// mustBeGiven reports whether documents must contain a property whose default was dropped. That
// is so if a member fills it in and then validates the object, or one that contains it, in a way
// that the new property may violate.
func (t *meeting) mustBeGiven(key string, ms []*member, fallback string) bool {
	if fallback != "" {
		return false
	}
	for i, m := range ms {
		p, ok := m.properties[key]
		if !ok || p.fallback == "" || t.comparison && i == 0 {
			continue
		}
		if m.notices([]string{key}) {
			return true
		}
	}
	return false
}

// cannotBeFilledIn reports whether a member has a default for a dropped property and may refuse
// the object because of it. Rules do not count, because they are evaluated with the default. Sets
// do not count either: items that are equal without the default are equal with it.
func (t *meeting) cannotBeFilledIn(key string, ms []*member) bool {
	for i, m := range ms {
		p, ok := m.properties[key]
		if !ok || p.fallback == "" || t.comparison && i == 0 {
			continue
		}
		if m.maxProperties != nil || m.above([]string{key}, (*member).checksWhole) {
			return true
		}
	}
	return false
}

// notices reports whether a new property at a path below the member may make the member refuse
// its object, or an object that contains it.
func (m *member) notices(path []string) bool {
	if m.maxProperties != nil {
		return true
	}
	return m.above(path, (*member).noticesBelow)
}

// above reports whether a condition is true for the path and the member, or for a member that
// contains it.
func (m *member) above(path []string, is func(*member, []string) bool) bool {
	for at := m; at != nil; at = at.up {
		if is(at, path) {
			return true
		}
		path = append([]string{at.step}, path...)
	}
	return false
}

func (m *member) noticesBelow(path []string) bool {
	if m.listType == "set" || m.checksWhole(path) {
		return true
	}
	if m.listType == "map" && len(path) == 2 && slices.Contains(m.mapKeys, path[1]) {
		return true
	}
	for _, encoded := range m.rules {
		var rule apiextensionsv1.ValidationRule
		mustDecode(encoded, &rule)
		if ruleTouches(rule.Rule, path) {
			return true
		}
	}
	return false
}

// checksWhole reports whether an enum or a clause may depend on the value at a path.
func (m *member) checksWhole(path []string) bool {
	if m.enum != nil {
		return true
	}
	for _, encoded := range slices.Concat(m.allOf, m.not) {
		if touches(*clauseOf(encoded), path) {
			return true
		}
	}
	for _, encoded := range slices.Concat(m.anyOf, m.oneOf) {
		if anyTouches(clausesOf(encoded), path) {
			return true
		}
	}
	return false
}

// touches reports whether the result of a clause may change when a property appears at a path.
func touches(c apiextensionsv1.JSONSchemaProps, path []string) bool {
	if len(c.Enum) > 0 || anyTouches(c.AllOf, path) || anyTouches(c.AnyOf, path) || anyTouches(c.OneOf, path) {
		return true
	}
	if c.Not != nil && touches(*c.Not, path) {
		return true
	}
	if len(path) == 1 {
		_, named := c.Properties[path[0]]
		return named || slices.Contains(c.Required, path[0]) || c.MaxProperties != nil || c.MinProperties != nil
	}
	if path[0] == anyItem {
		return c.Items != nil && c.Items.Schema != nil && touches(*c.Items.Schema, path[1:])
	}
	p, named := c.Properties[path[0]]
	return named && touches(p, path[1:])
}

func anyTouches(clauses []apiextensionsv1.JSONSchemaProps, path []string) bool {
	return slices.ContainsFunc(clauses, func(c apiextensionsv1.JSONSchemaProps) bool { return touches(c, path) })
}
