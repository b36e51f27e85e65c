package schema

import (
	"slices"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// The prefixes of some reasons.
const (
	// inexpressible is for parts that are left out although documents could have them, because the
	// schema of a CRD cannot express them.
	inexpressible   = "no schema can say "
	filledIn        = "a default fills it in"
	fallbackDiffers = "the default is "
)

func (t *meeting) meetObjects(path string, ms []*member, out *node) outcome {
	if !out.has(objects) {
		return outcome{}
	}
	for _, m := range ms {
		out.minProperties, out.maxProperties = higher(out.minProperties, m.minProperties), lower(out.maxProperties, m.maxProperties)
		out.required = append(out.required, m.required...)
		out.mapType = better(out.mapType, m.mapType)
		out.embedded = out.embedded || m.embedded
	}
	out.required = sortedSet(out.required)
	result := t.meetRest(path, ms, out)
	if result.why != nil {
		return result
	}
	keys := sortedKeys(nodesOf(ms))
	for _, key := range keys {
		r := t.meetProperty(child(path, key), key, ms, out)
		if r.why != nil && t.comparison {
			t.obstacles = append(t.obstacles, r.why...)
			out.required = slices.DeleteFunc(out.required, func(name string) bool { return name == key })
			continue
		}
		if r.why != nil {
			return r
		}
		result.dropped = append(result.dropped, r.dropped...)
	}
	if out.rest == closed {
		for _, key := range out.required {
			if out.properties[key] == nil {
				return bottom(child(path, key), ms, "it is required, and there is no such property (%s)", each(lacking(ms, key), func(*member) string { return "none" }))
			}
		}
	}
	if out.rest == mapped && len(out.properties) > 0 {
		return bottom(path, ms, inexpressible+"that an object has properties and also keys of another schema")
	}
	if out.embedded && (out.rest == shallow || out.rest == mapped) {
		return bottom(path, ms, inexpressible+"that an embedded resource keeps other keys without their content")
	}
	if out.embedded {
		for _, key := range metaKeys {
			if out.value(key) == nil {
				return bottom(child(path, key), ms, "an embedded resource always has it, and the other cannot hold it")
			}
		}
	}
	return result
}

func nodesOf(ms []*member) []*node {
	nodes := make([]*node, len(ms))
	for i, m := range ms {
		nodes[i] = m.node
	}
	return nodes
}

func child(path, key string) string {
	if path == "." {
		return "." + key
	}
	return path + "." + key
}

func lacking(ms []*member, key string) []*member {
	var without []*member
	for _, m := range ms {
		if m.value(key) == nil {
			without = append(without, m)
		}
	}
	if without == nil {
		return ms
	}
	return without
}

// meetRest meets the schemas of keys that are not properties.
func (t *meeting) meetRest(path string, ms []*member, out *node) outcome {
	out.rest = open
	for _, m := range ms {
		switch {
		case m.rest == closed:
			out.rest = closed
		case m.rest == mapped && out.rest != closed, m.rest == shallow && out.rest == open:
			out.rest = m.rest
		}
	}
	if out.rest != mapped {
		return outcome{}
	}
	var values []*member
	for _, m := range ms {
		switch m.rest {
		case mapped:
			values = append(values, m.below(m.additional, anyKey))
		case shallow:
			values = append(values, m.below(flatValue(), anyKey))
		case closed, open:
		}
	}
	r := t.meet(path+"[*]", values)
	if r.why == nil {
		r = t.meetNullFallback(path+"[*]", values, r)
	}
	if r.why != nil {
		// No value is valid for all members, so the result is an object without other keys.
		out.rest = closed
		return outcome{dropped: r.why}
	}
	out.additional = r.node
	return outcome{dropped: r.dropped}
}

// meetProperty meets one property. It adds the result to out, or drops the property.
func (t *meeting) meetProperty(path, key string, ms []*member, out *node) outcome {
	values, without := valuesOf(ms, key)
	if len(without) > 0 {
		return t.dropProperty(path, key, ms, out, []apiresourcev1alpha1.Obstacle{
			obstacle(path, without, noProperty+"%s", places(without)),
		})
	}
	r := t.meet(path, values)
	if r.why != nil {
		return t.dropProperty(path, key, ms, out, r.why)
	}
	if out.properties == nil {
		out.properties = map[string]*node{}
	}
	out.properties[key] = r.node
	chosen := t.meetFallback(key, ms, values, r.node)
	given := out.requires(key)
	if chosen == noValue && !t.comparison && !t.optional || t.mustBeGiven(key, ms, r.fallback) {
		out.required, given = sortedSet(append(out.required, key)), true
	}
	if chosen != allAlike {
		what := "each fills in its own"
		if r.fallback != "" {
			what = r.fallback + " is stored"
		} else if given {
			what = "it has to be given"
		}
		r.dropped = append(r.dropped, obstacle(path, values, fallbackDiffers+"%s; %s", each(values, fallbackName), what))
	}
	return outcome{dropped: r.dropped}
}

func places(ms []*member) string {
	var names []string
	for _, m := range ms {
		if m.location == "" {
			names = append(names, "the served schema")
			continue
		}
		names = append(names, m.location)
	}
	return joined(sortedSet(names))
}

func valuesOf(ms []*member, key string) (values, without []*member) {
	for _, m := range ms {
		if v := m.value(key); v != nil {
			values = append(values, m.below(v, key))
		} else {
			without = append(without, m)
		}
	}
	return values, without
}

// dropProperty drops a property, unless documents must have it. If a member requires it and has a
// default for it, documents need not have it.
func (t *meeting) dropProperty(path, key string, ms []*member, out *node, why []apiresourcev1alpha1.Obstacle) outcome {
	needed := func(m *member) bool {
		p := m.properties[key]
		return m.requires(key) && (p == nil || p.fallback == "" || t.comparison && m == ms[0])
	}
	if out.requires(key) && !slices.ContainsFunc(ms, needed) {
		out.required = slices.DeleteFunc(out.required, func(name string) bool { return name == key })
	}
	if out.requires(key) {
		for i := range why {
			why[i].Reason += "; " + path + " is required"
		}
		return outcome{why: why}
	}
	if t.cannotBeFilledIn(key, ms) {
		return bottom(path, ms, filledIn+" where the object as a whole is validated, so that it would have to be given: %s", why[0].Reason)
	}
	if out.rest != closed {
		if out.properties == nil {
			out.properties = map[string]*node{}
		}
		out.properties[key] = &node{impossible: true}
	}
	return outcome{dropped: why}
}

// choice is how the default of a property was determined, or why it has none.
type choice int

const (
	// allAlike: all members have this default, or none has one.
	allAlike choice = iota
	// chosen: some members have the default, and all accept it.
	chosen
	// unwanted: a member requires that documents contain the property, or validates its object by
	// whether the property exists.
	unwanted
	// noValue: no default is accepted by all members.
	noValue
)

// meetFallback determines the default of a property. If the members have different ones, the meet
// has one of them, so that every member has what is stored.
func (t *meeting) meetFallback(key string, ms, values []*member, n *node) choice {
	first := values[0].fallback
	if t.comparison {
		n.fallback = first
		return allAlike
	}
	if !slices.ContainsFunc(values, func(m *member) bool { return m.fallback != first }) {
		if len(values) > 1 && !accepts(n, first) {
			return noValue
		}
		n.fallback = first
		return allAlike
	}
	result := noValue
	for _, candidate := range fallbacksOf(values) {
		if !accepts(n, candidate) {
			continue
		}
		if unwantedBy(key, candidate, ms, values) {
			result = unwanted
			continue
		}
		n.fallback = candidate
		return chosen
	}
	return result
}

// fallbacksOf returns the defaults of all members without duplicates, in an order that does not
// depend on the order of the members.
func fallbacksOf(values []*member) []string {
	var all []string
	for _, m := range values {
		if m.fallback != "" {
			all = append(all, m.fallback)
		}
	}
	return sortedSet(all)
}

// unwantedBy reports whether another member's default would make a member refuse documents that
// it accepts, or would fill in a value that the member requires from documents.
func unwantedBy(key, candidate string, ms, values []*member) bool {
	for i, m := range ms {
		if values[i].fallback == candidate {
			continue
		}
		if m.requires(key) && values[i].fallback == "" || m.maxProperties != nil || m.above([]string{key}, (*member).checksWhole) {
			return true
		}
	}
	return false
}
