package schema

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// member is the schema of one offer at one place.
type member struct {
	location string
	*node
	// whole is the node before it was restricted to the types that all members have.
	whole *node
	// spec is set instead of the node if something other than the schema is compared.
	spec *apiresourcev1alpha1.CommonAPIResourceSpec
	// up is the member that contains this place. step is the way from there: the name of a
	// property, anyItem or anyKey. Both are unset at the root.
	up   *member
	step string
}

// The steps that are not the name of a property. A schema cannot contain these strings.
const (
	anyItem = "\x00item"
	anyKey  = "\x00key"
)

func (m *member) below(n *node, step string) *member {
	return &member{location: m.location, node: n, up: m, step: step}
}

// outcome is the result of a meet: the node, or the reasons for no node, and what the node had to
// leave out.
type outcome struct {
	*node
	why, dropped []apiresourcev1alpha1.Obstacle
}

// meeting meets nodes. In a comparison, the first member's defaults apply, because its documents
// already have them. In a comparison, the reasons that leave an object without a meet are
// collected in obstacles, so that all of them are found.
type meeting struct {
	comparison bool
	// optional keeps properties optional for which no default is accepted by all members.
	optional  bool
	obstacles []apiresourcev1alpha1.Obstacle
}

func bottom(path string, ms []*member, format string, args ...any) outcome {
	return outcome{why: []apiresourcev1alpha1.Obstacle{obstacle(path, ms, format, args...)}}
}

func obstacle(path string, ms []*member, format string, args ...any) apiresourcev1alpha1.Obstacle {
	o := apiresourcev1alpha1.Obstacle{Path: path, Reason: fmt.Sprintf(format, args...)}
	for _, m := range ms {
		if m.location != "" {
			o.Locations = append(o.Locations, m.location)
		}
	}
	o.Locations = sortedSet(o.Locations)
	return o
}

// each returns a text about every member, with the members' names.
func each(ms []*member, say func(*member) string) string {
	var order []string
	who := map[string][]string{}
	for _, m := range ms {
		said := say(m)
		if !slices.Contains(order, said) {
			order = append(order, said)
		}
		place := m.location
		if place == "" {
			place = "the served schema"
		}
		if !slices.Contains(who[said], place) {
			who[said] = append(who[said], place)
		}
	}
	for i, said := range order {
		order[i] = said + " (" + strings.Join(who[said], ", ") + ")"
	}
	return strings.Join(order, ", ")
}

// meet computes the schema that accepts only what every member accepts.
func (t *meeting) meet(path string, ms []*member) outcome {
	if t.comparison && len(ms) == 2 && reflect.DeepEqual(ms[0].node, ms[1].node) {
		// This includes schemas that contradict themselves, if both are equal.
		return outcome{node: ms[0].node}
	}
	for _, m := range ms {
		if m.impossible {
			return bottom(path, []*member{m}, "no value fulfills it")
		}
	}
	out := &node{kinds: anything, nullable: true}
	for _, m := range ms {
		out.kinds &= m.kinds
		out.nullable = out.nullable && m.nullable
		out.title, out.description = better(out.title, m.title), better(out.description, m.description)
	}
	if out.kinds == 0 {
		return bottom(path, ms, "it is %s", each(ms, func(m *member) string { return kindNames[m.kinds] }))
	}
	restricted := make([]*member, len(ms))
	for i, m := range ms {
		n := m.restrict(out.kinds)
		if n == nil {
			return bottom(path, ms, "one is an integer, and the other's bounds allow none")
		}
		restricted[i] = &member{location: m.location, node: n, whole: m.node, up: m.up, step: m.step}
	}
	return t.meetRestricted(path, restricted, out)
}

func (t *meeting) meetRestricted(path string, ms []*member, out *node) outcome {
	meetEnum(ms, out)
	meetNumbers(ms, out)
	meetStrings(ms, out)
	meetClauses(ms, out)
	if !out.clamp() {
		return bottom(path, ms, "no number that the format holds is within the bounds")
	}
	result := outcome{node: out}
	for _, part := range []struct {
		of   kinds
		meet func(string, []*member, *node) outcome
	}{{arrays, t.meetArrays}, {objects, t.meetObjects}} {
		r := part.meet(path, ms, out)
		if r.why != nil {
			return outcome{why: allBut(part.of, out, path, r.why)}
		}
		result.dropped = append(result.dropped, r.dropped...)
	}
	if reason := out.empty(); reason != "" {
		return bottom(path, ms, "%s", reason)
	}
	if clause := out.contradiction(); clause != "" {
		return bottom(path, ms, "without the properties that not all have, nothing fulfills the not %s", clause)
	}
	if why := meetRules(path, ms, out); why != nil {
		return *why
	}
	return result
}

// allBut qualifies the reasons for a node without a meet if the node also allows other types than
// of.
func allBut(of kinds, n *node, path string, why []apiresourcev1alpha1.Obstacle) []apiresourcev1alpha1.Obstacle {
	if n.kinds == of {
		return why
	}
	for i := range why {
		why[i].Reason = fmt.Sprintf("%sthat %s is anything but %s: %s", inexpressible, path, kindNames[of], why[i].Reason)
	}
	return why
}

// better chooses one of two texts, independently of their order.
func better(a, b string) string {
	if len(a) > len(b) || len(a) == len(b) && a < b {
		return a
	}
	return b
}

func meetEnum(ms []*member, out *node) {
	for _, m := range ms {
		switch {
		case m.enum == nil:
		case out.enum == nil:
			out.enum = slices.Clone(m.enum)
		default:
			out.enum = slices.DeleteFunc(out.enum, func(v string) bool {
				_, found := slices.BinarySearch(m.enum, v)
				return !found
			})
		}
	}
}

func meetNumbers(ms []*member, out *node) {
	for _, m := range ms {
		out.maximum, out.minimum = append(out.maximum, m.maximum...), append(out.minimum, m.minimum...)
		out.multiples = append(out.multiples, m.multiples...)
		out.numberFormat = narrowerFormat(out.kinds, out.numberFormat, m.numberFormat)
	}
	out.maximum, out.minimum = above.tightest(out.maximum), below.tightest(out.minimum)
	slices.Sort(out.multiples)
	out.multiples = slices.Compact(out.multiples)
}

// numberFormats are the formats that the validation supports, the narrower one first. It supports
// those of integers only on type integer, and those of numbers only on type number.
var numberFormats = map[kinds][]string{integers: {"int32", "int64"}, numbers: {"float", "double"}}

// narrowerFormat returns the narrower of two formats of numbers. Formats that the validation does
// not support allow everything.
func narrowerFormat(of kinds, a, b string) string {
	for _, f := range numberFormats[of] {
		if a == f || b == f {
			return f
		}
	}
	if a == "" || b != "" && b < a {
		return b
	}
	return a
}

func meetStrings(ms []*member, out *node) {
	for _, m := range ms {
		out.formats, out.patterns = append(out.formats, m.formats...), append(out.patterns, m.patterns...)
		out.minLength, out.maxLength = higher(out.minLength, m.minLength), lower(out.maxLength, m.maxLength)
	}
	out.formats, out.patterns = sortedSet(out.formats), sortedSet(out.patterns)
}

func meetClauses(ms []*member, out *node) {
	for _, m := range ms {
		out.allOf, out.anyOf = append(out.allOf, m.allOf...), append(out.anyOf, m.anyOf...)
		out.oneOf, out.not = append(out.oneOf, m.oneOf...), append(out.not, m.not...)
	}
	out.allOf, out.anyOf, out.oneOf = sortedSet(out.allOf), sortedSet(out.anyOf), sortedSet(out.oneOf)
	out.not = sortedSet(out.not)
}

func higher(a, b *int64) *int64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

func lower(a, b *int64) *int64 {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

func (t *meeting) meetArrays(path string, ms []*member, out *node) outcome {
	if !out.has(arrays) {
		return outcome{}
	}
	typed := false
	for _, m := range ms {
		out.minItems, out.maxItems = higher(out.minItems, m.minItems), lower(out.maxItems, m.maxItems)
		typed = typed || m.items != nil
		if m.listType == "" {
			continue
		}
		if out.listType != "" && (out.listType != m.listType || !slices.Equal(out.mapKeys, m.mapKeys)) {
			return bottom(path, ms, "as a list it is %s", each(ms, listName))
		}
		out.listType, out.mapKeys = m.listType, m.mapKeys
	}
	if !typed {
		return outcome{}
	}
	values := elements(ms)
	r := t.meet(path+"[*]", values)
	if r.why == nil {
		r = t.meetNullFallback(path+"[*]", values, r)
	}
	if r.why != nil {
		return noItems(out, r)
	}
	out.items = r.node
	if out.listType == "map" {
		out.dropKeys()
	}
	if out.listType != "set" {
		return outcome{dropped: r.dropped}
	}
	if r.listType != "" {
		return bottom(path, ms, inexpressible+"that a set holds lists which are no plain values")
	}
	if r.kinds == objects {
		atomic := *r.node
		atomic.mapType = "atomic"
		out.items = &atomic
	}
	return outcome{dropped: r.dropped}
}

// dropKeys removes the keys of a list that its items do not have. Each member fills in one value
// for such a key, or none. A list without keys has at most one item.
func (n *node) dropKeys() {
	n.mapKeys = slices.DeleteFunc(slices.Clone(n.mapKeys), func(key string) bool {
		p := n.items.properties[key]
		return p == nil || p.impossible
	})
	if len(n.mapKeys) == 0 {
		n.listType, n.mapKeys, n.maxItems = "", nil, lower(n.maxItems, new(int64(1)))
	}
}

func listName(m *member) string {
	switch m.listType {
	case "":
		return "atomic"
	case "map":
		return "a map by " + strings.Join(m.mapKeys, ", ")
	default:
		return "a " + m.listType
	}
}

func elements(ms []*member) []*member {
	below := make([]*member, len(ms))
	for i, m := range ms {
		below[i] = m.below(m.element(), anyItem)
	}
	return below
}

// noItems returns an array whose items have no meet. If the node allows only arrays, it has no
// meet either. Otherwise, only the empty array stays.
func noItems(out *node, items outcome) outcome {
	if out.kinds == arrays {
		return outcome{why: items.why}
	}
	out.items, out.maxItems = &node{impossible: true}, new(int64(0))
	return outcome{dropped: items.why}
}

// meetNullFallback determines the default of items and map values. Such a default only replaces
// null.
func (t *meeting) meetNullFallback(path string, ms []*member, r outcome) outcome {
	if t.comparison && ms[0].fallback != "" {
		r.fallback = ms[0].fallback
		return r
	}
	same := !slices.ContainsFunc(ms, func(m *member) bool { return m.fallback != ms[0].fallback })
	becomeOne := !slices.ContainsFunc(ms, func(m *member) bool { return m.nullBecomes() != ms[0].nullBecomes() })
	if !becomeOne && r.kinds == anything && !r.nullable {
		return bottom(path, ms, inexpressible+"that anything but null is allowed, and null becomes %s", each(ms, fallbackName))
	}
	if same && (len(ms) == 1 || accepts(r.node, ms[0].fallback)) {
		r.fallback = ms[0].fallback
	}
	return r
}

// nullBecomes returns the value that replaces null. It is empty if null stays or is removed.
func (m *member) nullBecomes() string {
	if m.nullable {
		return ""
	}
	return m.fallback
}

func fallbackName(m *member) string {
	if m.fallback == "" {
		return "nothing"
	}
	return m.fallback
}
