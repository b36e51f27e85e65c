package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// comparison finds where a meet accepts less than one of its members.
type comparison struct {
	offered *member
	// dropped contains the reasons why properties are missing in the meet.
	dropped []apiresourcev1alpha1.Obstacle
	found   []apiresourcev1alpha1.Obstacle
}

func (c *comparison) say(path, format string, args ...any) {
	c.found = append(c.found, obstacle(path, []*member{c.offered}, format, args...))
}

// narrower compares what a member accepts with what the meet accepts.
func (c *comparison) narrower(path string, was, is *node) {
	if is.impossible || was.impossible {
		if !was.impossible {
			c.missing(path)
		}
		return
	}
	if was.kinds != is.kinds {
		c.say(path, "it may be %s, and only %s is accepted", kindNames[was.kinds], kindNames[is.kinds])
		return
	}
	if was.nullable && !is.nullable {
		c.say(path, "it may be null, and null is not accepted")
	}
	if was.enum == nil && is.enum != nil || len(is.enum) < len(was.enum) {
		c.say(path, "not accepted of its values: %s", c.lost(was, is))
	}
	c.limits(path, was, is)
	c.added(path, was, is)
	if was.items != nil && is.items != nil {
		c.narrower(path+"[*]", was.items, is.items)
	} else if is.items != nil {
		c.narrower(path+"[*]", anyValue(), is.items)
	}
	c.object(path, was, is)
}

// lost returns the values of an enum that are no longer accepted.
func (c *comparison) lost(was, is *node) string {
	if was.enum == nil {
		return "all but " + joined(is.enum)
	}
	gone := slices.DeleteFunc(slices.Clone(was.enum), func(v string) bool {
		_, found := slices.BinarySearch(is.enum, v)
		return found
	})
	return joined(gone)
}

func (c *comparison) limits(path string, was, is *node) {
	for _, l := range []struct {
		name    string
		was, is *int64
	}{
		{"minLength", was.minLength, is.minLength}, {"maxLength", was.maxLength, is.maxLength},
		{"minItems", was.minItems, is.minItems}, {"maxItems", was.maxItems, is.maxItems},
		{"minProperties", was.minProperties, is.minProperties}, {"maxProperties", was.maxProperties, is.maxProperties},
	} {
		if l.is != nil && (l.was == nil || *l.was != *l.is) {
			c.say(path, "%s is %d, and was %s", l.name, *l.is, limitName(l.was))
		}
	}
	if !slices.Equal(was.maximum, is.maximum) {
		c.say(path, "its maximum is %s, and was %s", boundNames(is.maximum), boundNames(was.maximum))
	}
	if !slices.Equal(was.minimum, is.minimum) {
		c.say(path, "its minimum is %s, and was %s", boundNames(is.minimum), boundNames(was.minimum))
	}
	if !slices.Equal(was.multiples, is.multiples) {
		c.say(path, "multipleOf is %v, and was %v", is.multiples, was.multiples)
	}
	if f := numberFormats[is.kinds]; f != nil && is.numberFormat == f[0] && was.numberFormat != f[0] {
		c.say(path, "its format is %s", is.numberFormat)
	}
	if was.listType != is.listType || !slices.Equal(was.mapKeys, is.mapKeys) {
		c.say(path, "as a list it is %s, and was %s", listName(&member{node: is}), listName(&member{node: was}))
	}
}

func limitName(v *int64) string {
	if v == nil {
		return "not set"
	}
	return fmt.Sprint(*v)
}

func boundNames(bounds []bound) string {
	if len(bounds) == 0 {
		return "not set"
	}
	names := make([]string, len(bounds))
	for i, b := range bounds {
		names[i] = fmt.Sprint(b.value)
		if b.exclusive {
			names[i] += " (exclusive)"
		}
	}
	return joined(names)
}

// added reports the elements of set-valued keywords that only the meet requires.
func (c *comparison) added(path string, was, is *node) {
	for _, s := range []struct {
		name    string
		was, is []string
	}{
		{"format", was.formats, is.formats}, {"pattern", was.patterns, is.patterns},
		{"allOf", was.allOf, is.allOf}, {"anyOf", was.anyOf, is.anyOf}, {"oneOf", was.oneOf, is.oneOf}, {"not", was.not, is.not},
		{"rule", was.rules, is.rules},
	} {
		for _, v := range s.is {
			if !slices.Contains(s.was, v) && (s.name != "rule" || !restates(was, is, v)) {
				c.say(path, "the %s %s is added", s.name, v)
			}
		}
	}
	if is.embedded && !was.embedded {
		c.say(path, "it must be a whole resource with apiVersion and kind")
	}
}

// restates reports whether a rule results from the partial evaluation of an earlier rule.
func restates(was, is *node, rule string) bool {
	m := &member{node: was}
	return slices.ContainsFunc(was.rules, func(r string) bool {
		reduced, _ := m.reduce(r, is)
		return reduced == rule
	})
}

func (c *comparison) object(path string, was, is *node) {
	if !was.has(objects) {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(was.properties)) {
		if is.properties[key] != nil {
			c.narrower(child(path, key), was.properties[key], is.properties[key])
		} else if !was.properties[key].impossible {
			c.missing(child(path, key))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(is.properties)) {
		if was.properties[key] == nil && was.value(key) != nil {
			c.narrower(child(path, key), was.value(key), is.properties[key])
		}
	}
	for _, key := range is.required {
		if !was.requires(key) {
			c.say(child(path, key), "it is required")
		}
	}
	switch {
	case was.rest == is.rest && was.rest == mapped:
		c.narrower(path+"[*]", was.additional, is.additional)
	case was.rest != is.rest:
		c.say(path, "it may have any other key, and %s", restName(is.rest))
	}
}

func restName(rest openness) string {
	switch rest {
	case closed:
		return "only known properties are kept"
	case mapped:
		return "not every value is accepted there"
	default:
		return "fields of objects below are dropped"
	}
}

// missing reports why the property at a path is not in the meet.
func (c *comparison) missing(path string) {
	said := slices.ContainsFunc(c.found, func(o apiresourcev1alpha1.Obstacle) bool { return isBelow(o.Path, path) })
	for _, o := range c.dropped {
		if isBelow(o.Path, path) {
			o.Locations = obstacle("", []*member{c.offered}, "").Locations
			c.found, said = append(c.found, o), true
		}
	}
	if !said {
		c.say(path, "it is not accepted")
	}
}

func isBelow(path, above string) bool {
	rest, below := strings.CutPrefix(path, above)
	return below && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
