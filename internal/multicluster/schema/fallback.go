package schema

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// mustBeGiven says whether a property whose default was dropped has to be given by
// documents: when a member fills it in and validates the object, or one around it,
// in a way that the new property may break.
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

// cannotBeFilledIn says whether a member gives a property that was dropped a default, and
// may refuse the object because of it. Rules are evaluated with the default instead, and
// items of a set that are alike without it are alike with it.
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

// notices says whether a property that appears at a path below the member may make
// the member refuse its object or one around it.
func (m *member) notices(path []string) bool {
	if m.maxProperties != nil {
		return true
	}
	return m.above(path, (*member).noticesBelow)
}

// above says whether something is so of a path and the member, or one around it.
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

// checksWhole says whether an enum or a clause may depend on what is at a path.
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

// touches says whether a clause's answer may change with a property that appears at
// a path.
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
