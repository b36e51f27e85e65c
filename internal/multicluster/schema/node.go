package schema

import (
	"maps"
	"math"
	"slices"
)

// kinds is a set of JSON types without null. Numbers are two types: integers and other numbers.
type kinds uint8

const (
	integers kinds = 1 << iota
	fractions
	stringsKind
	booleans
	arrays
	objects

	numbers     = integers | fractions
	intOrString = integers | stringsKind
	anything    = integers | fractions | stringsKind | booleans | arrays | objects
)

var kindNames = map[kinds]string{
	integers: "an integer", numbers: "a number", stringsKind: "a string", booleans: "a boolean",
	arrays: "an array", objects: "an object", intOrString: "an integer or a string", anything: "anything",
}

// openness is what an object may contain in addition to its properties.
type openness uint8

const (
	// closed prunes every other key.
	closed openness = iota
	// shallow is additionalProperties: true. It keeps every key but empties the objects under it,
	// because pruning has no schema for them.
	shallow
	// mapped is additionalProperties with a schema.
	mapped
	// open keeps and accepts anything.
	open
)

// node is a schema in a normal form for comparing and meeting. Sets are sorted and have no
// duplicates. Keywords without effect are removed. Defaults, enums, clauses and rules are
// canonical JSON.
type node struct {
	// impossible accepts no value. The other fields are then empty.
	impossible bool

	kinds              kinds
	title, description string
	nullable           bool
	// fallback is the default, or empty if the node has none.
	fallback string
	// enum is nil if every value is allowed.
	enum []string

	maximum, minimum []bound
	multiples        []float64
	// numberFormat applies only to integers and numbers.
	numberFormat string

	formats, patterns    []string
	minLength, maxLength *int64

	items              *node
	minItems, maxItems *int64
	listType           string
	mapKeys            []string

	properties                   map[string]*node
	rest                         openness
	additional                   *node
	required                     []string
	minProperties, maxProperties *int64
	mapType                      string
	embedded                     bool

	allOf, anyOf, oneOf, not []string
	rules                    []string
}

// anyValue returns the schema of a value without restrictions.
func anyValue() *node { return &node{kinds: anything, nullable: true, rest: open} }

// flatValue returns the schema of a value below additionalProperties: true, for a meet with a
// more specific schema. It accepts what survives pruning without a schema, except arrays with
// items.
func flatValue() *node {
	n := anyValue()
	n.maxItems, n.maxProperties = new(int64(0)), new(int64(0))
	return n
}

// value returns the schema of a key of an object, or nil if the object cannot contain the key.
func (n *node) value(key string) *node {
	if p, ok := n.properties[key]; ok {
		if p.impossible {
			return nil
		}
		return p
	}
	switch n.rest {
	case mapped:
		// The default of map values replaces null. It does not add keys.
		v := *n.additional
		v.fallback = ""
		return &v
	case shallow:
		return flatValue()
	case open:
		return anyValue()
	default:
		return nil
	}
}

// element returns the schema of the items of an array.
func (n *node) element() *node {
	if n.items != nil {
		return n.items
	}
	return anyValue()
}

func (n *node) requires(key string) bool {
	_, found := slices.BinarySearch(n.required, key)
	return found
}

// size returns the size of a schema: the number of its nodes and of the values in its enums.
func (n *node) size() int {
	if n == nil {
		return 0
	}
	size := 1 + len(n.enum) + n.items.size() + n.additional.size()
	for _, p := range n.properties {
		size += p.size()
	}
	return size
}

func (n *node) has(k kinds) bool { return n.kinds&k != 0 }

// restrict returns the part of a node that applies to some types, or nil if nothing remains. It
// does not change the node.
func (n *node) restrict(to kinds) *node {
	r := *n
	r.kinds &= to
	if r.kinds == 0 || r.kinds == integers && n.kinds != integers && !r.integral() {
		return nil
	}
	if r.kinds != n.kinds {
		r.numberFormat = ""
	}
	r.strip()
	return &r
}

// integral converts bounds of numbers into the bounds that the validation of Kubernetes applies
// to integers. It reports whether any integer is left. The validation compares integers with the
// truncated bound. That is undefined for a bound outside int64.
func (n *node) integral() bool {
	var ok bool
	if n.maximum, ok = mapBounds(n.maximum, above.integral); !ok {
		return false
	}
	n.minimum, ok = mapBounds(n.minimum, below.integral)
	return ok
}

// strip removes the keywords that have no effect on the node's types.
func (n *node) strip() {
	if !n.has(numbers) {
		n.maximum, n.minimum, n.multiples, n.numberFormat = nil, nil, nil, ""
	}
	if !n.has(stringsKind) {
		n.formats, n.patterns, n.minLength, n.maxLength = nil, nil, nil, nil
	}
	if !n.has(arrays) {
		n.items, n.minItems, n.maxItems, n.listType, n.mapKeys = nil, nil, nil, "", nil
	}
	if !n.has(objects) {
		n.properties, n.rest, n.additional, n.required = nil, closed, nil, nil
		n.minProperties, n.maxProperties, n.mapType, n.embedded = nil, nil, "", false
	}
}

// empty returns why no value can satisfy the node's own bounds. It is empty if some value may.
func (n *node) empty() string {
	switch {
	case n.enum != nil && len(n.enum) == 0:
		return "no value of one enum is in the other"
	case crossed(n.minLength, n.maxLength) && n.kinds == stringsKind:
		return "the shortest length allowed is above the longest"
	case crossed(n.minItems, n.maxItems) && n.kinds == arrays:
		return "the fewest items allowed are more than the most"
	case crossed(n.minProperties, n.maxProperties) && n.kinds == objects:
		return "the fewest properties allowed are more than the most"
	case n.kinds&^numbers == 0 && n.noNumber():
		return "the least number allowed is above the greatest"
	default:
		return ""
	}
}

func crossed(low, high *int64) bool { return low != nil && high != nil && *low > *high }

func (n *node) noNumber() bool {
	for _, low := range n.minimum {
		for _, high := range n.maximum {
			if low.value > high.value || low.value == high.value && (low.exclusive || high.exclusive) {
				return true
			}
		}
	}
	return false
}

// clamp removes bounds that the format of an integer implies. The validation refuses every value
// if a bound itself is outside the range of the format.
func (n *node) clamp() bool {
	if n.kinds != integers {
		return true
	}
	low, high := integerRange(n.numberFormat)
	for _, b := range n.maximum {
		if b.value < low {
			return false
		}
	}
	for _, b := range n.minimum {
		if b.value > high {
			return false
		}
	}
	n.maximum = slices.DeleteFunc(slices.Clone(n.maximum), func(b bound) bool { return b.value > high })
	n.minimum = slices.DeleteFunc(slices.Clone(n.minimum), func(b bound) bool { return b.value < low })
	return true
}

func integerRange(format string) (low, high float64) {
	if format == "int32" {
		return math.MinInt32, math.MaxInt32
	}
	// The largest float64 below 2^63.
	return math.MinInt64, math.MaxInt64 - 1023
}

func sortedKeys(nodes []*node) []string {
	keys := map[string]bool{}
	for _, n := range nodes {
		for k := range n.properties {
			keys[k] = true
		}
	}
	return slices.Sorted(maps.Keys(keys))
}
