package schema

import (
	"maps"
	"math"
	"math/rand/v2"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// sampler creates documents that a schema may accept. It aims at the limits of that schema and of
// another one, because documents that one accepts and the other refuses are there.
type sampler struct {
	*rand.Rand
	// sparse leaves out most of the optional values.
	sparse bool
	// noise adds keys where the schema is not expected to allow any.
	noise bool
	// left is how many more values may be created.
	left *int
	// patterns caches parsed patterns.
	patterns map[string]*syntax.Regexp
}

// maxValues limits the values of an example, because the items of nested lists multiply. Values
// above the limit are left out, so such a document may be refused. A text counts as one value for
// each textUnit bytes.
const maxValues, textUnit = 2_000, 64

// newSampler returns a sampler that creates the same documents for the same seed.
func newSampler(seed uint64) sampler {
	left := math.MaxInt
	return sampler{Rand: rand.New(rand.NewPCG(seed, 0x5c4e3a)), left: &left, patterns: map[string]*syntax.Regexp{}}
}

func (s sampler) chance(percent int) bool { return s.IntN(100) < percent }

func pick[T any](s sampler, values []T) T { return values[s.IntN(len(values))] }

// resource creates a whole resource in which the value at a path exists.
func (s sampler) resource(n, other *node, path []string) map[string]any {
	doc, ok := s.object(n, other, path).(map[string]any)
	if !ok {
		doc = map[string]any{}
	}
	doc["apiVersion"], doc["kind"] = "example.rik.dev/v1", "Example"
	metadata := map[string]any{"name": "example"}
	if m := n.properties["metadata"]; m != nil && m.properties["name"] != nil {
		metadata["name"] = s.value(m.properties["name"], nil, nil)
	}
	doc["metadata"] = metadata
	return doc
}

// value creates a value for a node. other is the node of the other schema at that place, or nil.
// path is the value that must exist below it.
func (s sampler) value(n, other *node, path []string) any {
	if *s.left--; n == nil || n.impossible {
		return s.plain()
	}
	if other == nil || other.impossible {
		other = anyValue()
	}
	if n.enum != nil && !s.chance(5) {
		return mustValue(pick(s, n.enum))
	}
	if n.nullable && len(path) == 0 && s.chance(10) {
		return nil
	}
	if n.fallback != "" && len(path) == 0 && s.chance(10) {
		return mustValue(n.fallback)
	}
	if len(path) > 0 {
		if path[0] == anyItem && n.has(arrays) {
			return s.array(n, other, path)
		}
		if n.has(objects) {
			return s.object(n, other, path)
		}
	}
	switch s.kind(n.kinds) {
	case integers:
		return s.integer(n, other)
	case fractions:
		return s.fraction(n, other)
	case stringsKind:
		return s.text(n, other)
	case booleans:
		return s.chance(50)
	case arrays:
		return s.array(n, other, nil)
	default:
		return s.object(n, other, nil)
	}
}

func mustValue(encoded string) any {
	value, err := decode([]byte(encoded))
	if err != nil {
		panic("programmer error: decoding an encoded value: " + err.Error())
	}
	return value
}

func (s sampler) kind(of kinds) kinds {
	var single []kinds
	for k := integers; k <= objects; k <<= 1 {
		if of&k != 0 {
			single = append(single, k)
		}
	}
	return pick(s, single)
}

// plain returns any value.
func (s sampler) plain() any {
	return pick(s, []any{nil, true, "a", int64(1), 1.5, []any{}, []any{int64(1)}, map[string]any{}, map[string]any{"a": "b"}, map[string]any{"a": map[string]any{"b": int64(1)}}})
}

func (s sampler) numbersNear(n, other *node) []float64 {
	near := []float64{0, 1, 2, 7}
	for _, x := range []*node{n, other} {
		for _, b := range slices.Concat(x.maximum, x.minimum) {
			near = append(near, b.value, b.value+1, b.value-1, b.value+0.5, b.value-0.5)
		}
		for _, m := range x.multiples {
			near = append(near, m, m*2, m*3, m*6, -m)
		}
		for _, e := range x.enum {
			switch v := mustValue(e).(type) {
			case int64:
				near = append(near, float64(v))
			case float64:
				near = append(near, v)
			}
		}
	}
	return append(near, -1, 100, 1<<31, 1<<40)
}

func (s sampler) integer(n, other *node) any {
	near := s.numbersNear(n, other)
	for range 8 {
		v := math.Floor(pick(s, near))
		if math.Abs(v) < 1<<60 && (s.chance(20) || withinAll(n, v)) {
			return int64(v)
		}
	}
	return int64(s.IntN(10))
}

func (s sampler) fraction(n, other *node) any {
	near := append(s.numbersNear(n, other), 0.5, 1.5, 2.25)
	if n.numberFormat != "" || other.numberFormat != "" {
		// These are out of the range of the format float.
		near = append(near, 1e39, 1e39, -1e39)
	}
	for range 8 {
		v := pick(s, near)
		if s.chance(20) || withinAll(n, v) {
			return v
		}
	}
	return 0.5
}

func withinAll(n *node, v float64) bool {
	for _, b := range n.maximum {
		if !above.within(bound{value: v}, b) {
			return false
		}
	}
	for _, b := range n.minimum {
		if !below.within(bound{value: v}, b) {
			return false
		}
	}
	return !slices.ContainsFunc(n.multiples, func(m float64) bool { return math.Mod(v, m) != 0 })
}

// formatExamples contains values for the formats that Kubernetes validates.
var formatExamples = map[string][]string{
	"date-time": {"2026-11-22T20:00:00Z"}, "datetime": {"2026-11-22T20:00:00Z"}, "date": {"2026-11-22"}, "duration": {"3s"},
	"ipv4": {"10.0.0.1"}, "ipv6": {"fd00::1"}, "cidr": {"10.0.0.0/8"}, "uri": {"https://rik.dev/a"}, "email": {"a@rik.dev"},
	"hostname": {"rik.dev", "a"}, "uuid": {"6c1d1b1e-3b0a-4c7e-9d4c-7d1b6a1f0a11"}, "byte": {"YQ==", ""}, "mac": {"02:00:00:00:00:01"}, "password": {"a"},
}

func (s sampler) text(n, other *node) any {
	options := []string{"", "a", "b", "ab", "A1", "x-y", strings.Repeat("l", 20)}
	for _, x := range []*node{n, other} {
		for _, f := range x.formats {
			options = append(options, formatExamples[f]...)
		}
		for _, p := range x.patterns {
			options = append(options, s.matching(p), s.matching(p))
		}
		for _, length := range []*int64{x.minLength, x.maxLength} {
			if length != nil && *length < 5000 {
				options = append(options, strings.Repeat("a", int(*length)), strings.Repeat("a", int(*length)+1), strings.Repeat("a", int(max(*length-1, 0))))
			}
		}
		for _, e := range x.enum {
			if text, ok := mustValue(e).(string); ok {
				options = append(options, text)
			}
		}
	}
	best := pick(s, options)
	for range 8 {
		if s.chance(10) || plausible(n, best) {
			break
		}
		best = pick(s, options)
	}
	*s.left -= len(best) / textUnit
	return best
}

func plausible(n *node, text string) bool {
	length := int64(utf8.RuneCountInString(text))
	if n.minLength != nil && length < *n.minLength || n.maxLength != nil && length > *n.maxLength {
		return false
	}
	for _, f := range n.formats {
		if known, ok := formatExamples[f]; ok && !slices.Contains(known, text) {
			return false
		}
	}
	return true
}

// matching creates a text that matches a pattern, if the pattern has no assertions such as
// lookahead.
func (s sampler) matching(pattern string) string {
	parsed, known := s.patterns[pattern]
	if !known {
		parsed, _ = syntax.Parse(pattern, syntax.Perl)
		s.patterns[pattern] = parsed
	}
	if parsed == nil {
		return ""
	}
	var b strings.Builder
	s.match(parsed, &b)
	return b.String()
}

func (s sampler) match(re *syntax.Regexp, b *strings.Builder) {
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		if len(re.Rune) > 0 {
			i := 2 * s.IntN(len(re.Rune)/2)
			b.WriteRune(re.Rune[i] + rune(s.IntN(int(min(re.Rune[i+1]-re.Rune[i], 25))+1)))
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte('a')
	case syntax.OpCapture, syntax.OpConcat:
		for _, sub := range re.Sub {
			s.match(sub, b)
		}
	case syntax.OpAlternate:
		s.match(pick(s, re.Sub), b)
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		low, high := repeats(re)
		for range low + s.IntN(high-low+1) {
			s.match(re.Sub[0], b)
		}
	default:
	}
}

// repeats returns how often a repetition is created: not much more often than required.
func repeats(re *syntax.Regexp) (low, high int) {
	switch re.Op {
	case syntax.OpStar:
		return 0, 2
	case syntax.OpPlus:
		return 1, 3
	case syntax.OpQuest:
		return 0, 1
	default:
		if re.Max < 0 {
			return re.Min, re.Min + 2
		}
		return re.Min, min(re.Max, re.Min+2)
	}
}

func (s sampler) count(of, other []*int64) int {
	options := []int64{0, 1, 2}
	for _, limit := range slices.Concat(of, other) {
		if limit != nil && *limit < 200 {
			options = append(options, *limit, *limit+1, max(*limit-1, 0))
		}
	}
	for range 8 {
		n := pick(s, options)
		if s.chance(10) || (of[0] == nil || n >= *of[0]) && (of[1] == nil || n <= *of[1]) {
			return int(n)
		}
	}
	return 1
}

func (s sampler) array(n, other *node, path []string) any {
	size := s.count([]*int64{n.minItems, n.maxItems}, []*int64{other.minItems, other.maxItems})
	if s.sparse && n.minItems == nil && s.chance(50) {
		size = 0
	}
	if len(path) > 0 {
		size = max(size, 1)
		path = path[1:]
	}
	items, first := make([]any, 0, size), 0
	for i := range size {
		if *s.left <= 0 && len(path) == 0 {
			break
		}
		if i > 0 && n.listType == "" && s.chance(20) {
			*s.left -= first
			items = append(items, items[0])
			continue
		}
		before := *s.left
		items = append(items, s.value(n.element(), other.element(), path))
		if i == 0 {
			first = before - *s.left
		}
		path = nil
	}
	return items
}

func (s sampler) object(n, other *node, path []string) any {
	doc := map[string]any{}
	step := ""
	if len(path) > 0 {
		step, path = path[0], path[1:]
	}
	for _, key := range slices.Sorted(maps.Keys(n.properties)) {
		p := n.properties[key]
		switch {
		case key == step:
			doc[key] = s.value(p, other.value(key), path)
		case p.impossible, *s.left <= 0:
		case n.requires(key) && !s.chance(2), s.chance(s.optional(len(n.properties))):
			doc[key] = s.value(p, other.value(key), nil)
		}
	}
	if n.rest == closed {
		if s.noise && s.chance(8) {
			key := pick(s, append(slices.Sorted(maps.Keys(other.properties)), "key"))
			if _, is := n.properties[key]; !is {
				doc[key] = s.plain()
			}
		}
		return doc
	}
	s.fillKeys(doc, n, other, step, path)
	return doc
}

// optional returns the probability, in percent, that an optional property is created.
func (s sampler) optional(properties int) int {
	if s.sparse {
		return 5
	}
	return max(75-properties*3, 3)
}

// fillKeys adds keys that are not properties.
func (s sampler) fillKeys(doc map[string]any, n, other *node, step string, path []string) {
	names := slices.Concat(n.required, slices.Sorted(maps.Keys(other.properties)), []string{"a", "b", "key"})
	count := s.count([]*int64{n.minProperties, n.maxProperties}, []*int64{other.minProperties, other.maxProperties})
	add := func(key string, path []string) {
		if _, is := n.properties[key]; !is && doc[key] == nil {
			doc[key] = s.value(n.value(key), other.value(key), path)
		}
	}
	if step == anyKey {
		add("key", path)
	} else if step != "" {
		add(step, path)
	}
	for _, key := range n.required {
		add(key, nil)
	}
	for i := range min(count, 20) {
		if len(doc) >= count || *s.left <= 0 {
			break
		}
		add(names[(i+s.IntN(len(names)))%len(names)], nil)
	}
}
