package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp/syntax"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

type props = apiextensionsv1.JSONSchemaProps

// generator creates random structural schemas, and similar schemas with small differences.
// Unrelated schemas would have no meet.
type generator struct {
	sampler
	focus focus
}

// focus is one aspect in which all schemas of a family differ wherever they can. A rare
// difference would seldom be covered by a document.
type focus int

const (
	nothing focus = iota
	// bounds: several inclusive and exclusive bounds, integers and fractions.
	bounds
	numberFormat
	// openItems: arrays and their items keep unknown keys, or do not.
	openItems
	fallbacks
	// rules compile slowly, so other families have none.
	rules
	focuses
)

func newGenerator(seed uint64) generator {
	g := generator{sampler: sampler{Rand: rand.New(rand.NewPCG(seed, seed^0xabcdef)), noise: true, left: ptr(math.MaxInt), patterns: map[string]*syntax.Regexp{}}}
	if g.chance(65) {
		g.focus = focus(1 + g.IntN(int(focuses)-1))
	}
	return g
}

func ptr[T any](v T) *T { return &v }

var propertyNames = []string{"a", "b", "c", "d", "x.y"}

// root returns the schema of a resource.
func (g generator) root() *props {
	root := &props{Type: "object", Properties: map[string]props{"spec": *g.schema(3, []string{"object"})}}
	if g.chance(30) {
		root.Properties["status"] = *g.schema(2, nil)
	}
	if g.chance(10) {
		root.XPreserveUnknownFields = ptr(true)
	}
	if g.chance(70) {
		root.Required = []string{"spec"}
	}
	if g.chance(10) {
		root.Properties["metadata"] = props{Type: "object", Properties: map[string]props{"name": {Type: "string", MaxLength: ptr(int64(5 + g.IntN(4)))}}}
	}
	return root
}

func (g generator) schema(depth int, types []string) *props {
	if types == nil {
		types = []string{"string", "string", "integer", "integer", "number", "boolean", "intOrString"}
		if depth > 0 {
			types = append(types, "object", "object", "object", "object", "array", "array", "any")
		}
	}
	p := &props{Type: pick(g.sampler, types)}
	switch p.Type {
	case "intOrString":
		p.Type, p.XIntOrString = "", true
		g.number(p)
		g.text(p)
	case "any":
		p.Type, p.XPreserveUnknownFields = "", ptr(true)
		if g.chance(30) {
			g.number(p)
		}
		if g.chance(20) {
			p.Properties = g.properties(depth - 1)
		}
	case "string":
		g.text(p)
	case "integer", "number":
		g.number(p)
	case "array":
		g.array(p, depth-1)
	case "object":
		g.object(p, depth-1)
	}
	p.Nullable = g.chance(10)
	g.clauses(p)
	g.fallback(p)
	return p
}

func (g generator) text(p *props) {
	if g.chance(20) {
		p.MaxLength = ptr(int64(1 + g.IntN(4)))
	}
	if g.chance(20) {
		p.MinLength = ptr(int64(g.IntN(3)))
	}
	if g.chance(20) {
		p.Pattern = pick(g.sampler, []string{"^[a-c]*$", "^[a-z]+$", "a", "^.{0,3}$"})
	}
	if p.Type == "string" && g.chance(15) {
		p.Format = pick(g.sampler, []string{"byte", "date-time", "ipv4", "hostname", "int32", "made-up"})
	}
	if p.Type == "string" && g.chance(20) {
		p.Enum = g.enum([]string{`"a"`, `"b"`, `"ab"`, `""`})
	}
}

func (g generator) number(p *props) {
	limits := []float64{-3, 0, 1, 2, 3, 5, 8, 10}
	if p.Type != "integer" {
		limits = append(limits, -2.5, 0.5, 2.5, 2.75)
	} else if g.chance(20) {
		p.Format = pick(g.sampler, []string{"int32", "int64"})
	} else if g.chance(5) {
		limits = []float64{1 << 32, 1 << 40}
	}
	if p.Type == "number" && g.chance(20) {
		p.Format = pick(g.sampler, []string{"float", "double", "int32"})
	}
	if g.chance(25) {
		p.Maximum, p.ExclusiveMaximum = ptr(pick(g.sampler, limits)), g.chance(30)
	}
	if g.chance(25) {
		p.Minimum, p.ExclusiveMinimum = ptr(pick(g.sampler, limits)), g.chance(30)
	}
	if g.chance(10) {
		p.MultipleOf = ptr(pick(g.sampler, []float64{1, 2, 3}))
		if p.Type == "number" && g.chance(30) {
			p.MultipleOf = ptr(0.5)
		}
	}
	if p.Type == "integer" && g.chance(15) {
		p.Enum = g.enum([]string{"0", "1", "2", "3"})
	}
}

func (g generator) enum(values []string) []apiextensionsv1.JSON {
	var enum []apiextensionsv1.JSON
	for _, v := range values {
		if g.chance(60) {
			enum = append(enum, apiextensionsv1.JSON{Raw: []byte(v)})
		}
	}
	return enum
}

func (g generator) array(p *props, depth int) {
	if g.chance(25) {
		p.MaxItems = ptr(int64(g.IntN(4)))
	}
	if g.chance(15) {
		p.MinItems = ptr(int64(g.IntN(3)))
	}
	items := g.schema(depth, nil)
	switch g.IntN(5) {
	case 0:
		p.XListType = ptr("set")
		items = g.schema(0, nil)
		if g.chance(25) {
			items = &props{Type: "object", XMapType: ptr("atomic"), Properties: g.properties(0)}
		}
		items.Nullable = false
	case 1:
		p.XListType, p.XListMapKeys = ptr("map"), []string{"a"}
		items = &props{Type: "object", Properties: g.properties(depth), Required: []string{"a"}}
		items.Properties["a"] = props{Type: "string"}
		if g.chance(50) {
			items.Required = nil
			items.Properties["a"] = props{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(pick(g.sampler, []string{`"a"`, `"b"`}))}}
		}
	default:
		if g.chance(10) {
			p.XPreserveUnknownFields = ptr(true)
		}
	}
	p.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: items}
}

// list returns an array of objects, or of arrays of objects.
func (g generator) list() props {
	items := &props{Type: "object", Properties: map[string]props{"a": {Type: "string"}}}
	if g.chance(40) {
		items = &props{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: items}}
	}
	return props{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: items}}
}

func (g generator) properties(depth int) map[string]props {
	properties := map[string]props{}
	for _, name := range propertyNames {
		if g.chance(75) {
			properties[name] = *g.schema(depth, nil)
		}
	}
	return properties
}

func (g generator) object(p *props, depth int) {
	switch g.IntN(12) {
	case 0:
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: g.schema(depth, nil)}
	case 1:
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: g.chance(80)}
	case 2:
		p.XPreserveUnknownFields = ptr(true)
		if g.chance(30) {
			p.XEmbeddedResource = true
		}
	case 3:
		p.XPreserveUnknownFields = ptr(true)
		p.Properties = g.properties(depth)
	default:
		p.Properties = g.properties(depth)
	}
	if g.focus == openItems && p.Properties != nil {
		p.Properties["d"] = g.list()
	}
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		if g.chance(20) {
			p.Required = append(p.Required, name)
		}
	}
	if g.chance(8) {
		p.MaxProperties = ptr(int64(1 + g.IntN(4)))
	}
	if g.chance(8) {
		p.MinProperties = ptr(int64(g.IntN(3)))
	}
	if g.chance(10) {
		p.XMapType = ptr("atomic")
	}
	if g.focus == rules && len(p.Properties) > 0 && g.chance(30) {
		p.XValidations = append(p.XValidations, g.rule(p))
	}
}

// rule returns a rule about properties of the schema.
func (g generator) rule(p *props) apiextensionsv1.ValidationRule {
	rule := g.about("self", p, 2)
	switch {
	case g.chance(15):
		rule = "!(" + rule + ")"
	case g.chance(20):
		rule = "(" + rule + ") && (" + g.about("self", p, 2) + ")"
	case g.chance(20):
		rule = "(" + rule + ") || (" + g.about("self", p, 2) + ")"
	case g.chance(20):
		name, other := g.property("self", p), g.property("self", p)
		rule = "(has(" + name + ") ? 1 : 0) + (has(" + other + ") ? 1 : 0) <= 1"
	case g.chance(20):
		name := g.property("self", p)
		old := strings.Replace(name, "self", "oldSelf", 1)
		rule = pick(g.sampler, []string{"!has(" + old + ") || has(" + name + ")", "!has(" + old + ") || !has(" + name + ") || " + old + " == " + name})
	}
	return apiextensionsv1.ValidationRule{Rule: rule, Message: "because of " + strings.ReplaceAll(rule, "\n", " ")}
}

func (g generator) property(at string, p *props) string {
	return at + "." + strings.ReplaceAll(pick(g.sampler, slices.Sorted(maps.Keys(p.Properties))), ".", "__dot__")
}

// about returns a condition on one property of an object, in one of the usual forms.
func (g generator) about(at string, p *props, depth int) string {
	path := g.property(at, p)
	name := strings.ReplaceAll(strings.TrimPrefix(path, at+"."), "__dot__", ".")
	property := p.Properties[name]
	value := g.of(path, &property, depth)
	switch {
	case value == "" || property.Nullable:
		return pick(g.sampler, []string{"has(" + path + ")", "!has(" + path + ")"})
	case g.chance(40):
		return "!has(" + path + ") || " + value
	case g.chance(20):
		return "has(" + path + ") && " + value
	case g.chance(20):
		return "has(" + path + ") ? " + value + " : " + pick(g.sampler, []string{"true", "has(" + g.property(at, p) + ")"})
	case g.chance(20):
		return at + ".?" + strings.TrimPrefix(path, at+".") + ".hasValue()"
	case g.chance(50):
		return value
	default:
		return "!has(" + path + ")"
	}
}

// of returns a condition on a value, or an empty string.
func (g generator) of(path string, p *props, depth int) string {
	variable := "x" + fmt.Sprint(depth)
	switch {
	case p.Type == "integer":
		return pick(g.sampler, []string{path + " < 3", path + " != 1"})
	case p.Type == "number":
		return pick(g.sampler, []string{path + " < 2.5", path + " * 2.0 != 1.0"})
	case p.Type == "string" && (p.Format == "" || p.Format == "hostname"):
		return pick(g.sampler, []string{path + " != 'a'", "size(" + path + ") < 2", path + " in ['a', 'ab']", path + ".startsWith('a')"})
	case p.XIntOrString:
		return pick(g.sampler, []string{path + " != 'a'", "type(" + path + ") == int", path + " == 1"})
	case p.Type == "boolean":
		return path
	case p.Type == "array" && depth > 0 && g.chance(70):
		body := g.of(variable, p.Items.Schema, depth-1)
		if body == "" || p.Items.Schema.Nullable {
			break
		}
		return path + pick(g.sampler, []string{".all(", ".exists(", ".exists_one("}) + variable + ", " + body + ")"
	case p.Type == "array":
		return "size(" + path + ") != 1"
	case p.Type == "object" && len(p.Properties) > 0 && depth > 0:
		return "(" + g.about(path, p, depth-1) + ")"
	}
	return ""
}

func (g generator) clauses(p *props) {
	if !g.chance(12) {
		return
	}
	clause := func() props { return g.clause(p) }
	switch g.IntN(4) {
	case 0:
		p.AllOf = append(p.AllOf, clause())
	case 1:
		p.AnyOf = append(p.AnyOf, clause(), clause())
	case 2:
		p.OneOf = append(p.OneOf, clause(), clause())
	default:
		c := clause()
		p.Not = &c
	}
}

func (g generator) clause(p *props) props {
	var c props
	switch {
	case len(p.Properties) > 0:
		name := pick(g.sampler, slices.Sorted(maps.Keys(p.Properties)))
		if g.chance(50) {
			c.Required = []string{name}
		} else {
			c.Properties = map[string]props{name: {MaxLength: ptr(int64(g.IntN(3))), Maximum: ptr(float64(g.IntN(3)))}}
		}
		if g.chance(10) {
			c.MaxProperties = ptr(int64(g.IntN(3)))
		}
	case p.Type == "string":
		c.Pattern = pick(g.sampler, []string{"^a", "b$", "^[a-c]*$"})
	default:
		c.Maximum = ptr(float64(g.IntN(4)))
	}
	return c
}

// fallback sets a default that is valid for the schema, as the API server requires.
func (g generator) fallback(p *props) {
	if !g.chance(20) {
		return
	}
	n, err := read(p)
	if err != nil {
		return
	}
	fallback := encode(g.value(n, nil, nil))
	if fallback != "null" && accepts(n, fallback) {
		p.Default = &apiextensionsv1.JSON{Raw: []byte(fallback)}
	}
}

// vary copies a schema and replaces some of its nodes.
func (g generator) vary(p *props, depth, percent int) *props {
	if g.chance(percent) {
		switch g.IntN(3) {
		case 0:
			return g.schema(depth, nil)
		case 1:
			if p.Type != "" {
				return g.schema(depth, []string{p.Type})
			}
		}
		fresh := p.DeepCopy()
		g.tweak(fresh)
		p = fresh
	}
	varied := p.DeepCopy()
	if g.chance(80) {
		g.differ(varied)
	}
	for _, name := range slices.Sorted(maps.Keys(varied.Properties)) {
		child := varied.Properties[name]
		varied.Properties[name] = *g.vary(&child, depth-1, percent)
	}
	if varied.Items != nil && (varied.XListType == nil || *varied.XListType == "set" && varied.Items.Schema.Type == "object") {
		varied.Items.Schema = g.vary(varied.Items.Schema, depth-1, percent)
	}
	if varied.AdditionalProperties != nil && varied.AdditionalProperties.Schema != nil {
		varied.AdditionalProperties.Schema = g.vary(varied.AdditionalProperties.Schema, depth-1, percent)
	}
	return varied
}

func (g generator) tweak(p *props) {
	switch g.IntN(7) {
	case 0:
		p.Default = nil
		g.fallback(p)
	case 1:
		p.Nullable = !p.Nullable
	case 2:
		p.Required = nil
	case 3:
		if len(p.Properties) > 0 {
			delete(p.Properties, pick(g.sampler, slices.Sorted(maps.Keys(p.Properties))))
			p.Required, p.AllOf, p.AnyOf, p.OneOf, p.Not, p.XValidations = nil, nil, nil, nil, nil, nil
		}
	case 4:
		if p.Type == "object" && p.AdditionalProperties == nil && p.Properties != nil {
			p.Properties[pick(g.sampler, propertyNames)] = *g.schema(0, nil)
		}
	case 5:
		if p.Type == "object" && p.AdditionalProperties == nil {
			p.XPreserveUnknownFields = ptr(true)
		}
	default:
		if p.Type == "number" || p.Type == "integer" {
			g.number(p)
		}
		if p.Type == "string" {
			g.text(p)
		}
		g.clauses(p)
	}
}

// differ changes the aspect of a schema that is the focus of the family.
func (g generator) differ(p *props) {
	switch g.focus {
	case bounds:
		if p.Type == "integer" || p.Type == "number" || p.XIntOrString {
			p.Maximum, p.Minimum, p.MultipleOf, p.Enum, p.Default = nil, nil, nil, nil, nil
			limits := []float64{2, 3}
			if p.Type != "integer" {
				limits = []float64{-2.5, 2, 2.25, 2.5, 3}
			}
			p.ExclusiveMaximum, p.ExclusiveMinimum = g.chance(50), g.chance(50)
			if g.chance(60) {
				p.Maximum = ptr(pick(g.sampler, limits))
			}
			if g.chance(40) {
				p.Minimum = ptr(-pick(g.sampler, limits))
			}
		}
	case numberFormat:
		if p.Type == "integer" || p.Type == "number" {
			p.Maximum, p.Minimum, p.MultipleOf, p.Enum, p.Default = nil, nil, nil, nil, nil
			formats := []string{"int32", "int64", "uint32", ""}
			if p.Type == "number" {
				formats = []string{"float", "float", "double", "int32", ""}
			}
			p.Format = pick(g.sampler, formats)
		}
	case openItems:
		if items := p.Items; items != nil && items.Schema != nil && p.XListType == nil {
			p.MaxItems, p.Default = nil, nil
			p.XPreserveUnknownFields = nil
			if g.chance(40) {
				p.XPreserveUnknownFields = ptr(true)
			}
			if items.Schema.Type == "object" && items.Schema.AdditionalProperties == nil && items.Schema.Properties != nil {
				items.Schema.XPreserveUnknownFields = nil
				if g.chance(20) {
					items.Schema.XPreserveUnknownFields = ptr(true)
				}
			}
		}
	case fallbacks:
		g.differInFallback(p)
		g.notice(p)
	case rules:
		if g.chance(40) {
			g.differInFallback(p)
		}
		if p.Type == "object" && len(p.Properties) > 1 && g.chance(40) {
			delete(p.Properties, pick(g.sampler, slices.Sorted(maps.Keys(p.Properties))))
			p.Required, p.AllOf, p.AnyOf, p.OneOf, p.Not, p.Default = nil, nil, nil, nil, nil, nil
		}
		if p.Type == "object" && len(p.Properties) > 0 {
			p.XValidations = nil
			for range pick(g.sampler, []int{0, 1, 1, 1, 2}) {
				p.XValidations = append(p.XValidations, g.rule(p))
			}
		}
	case nothing, focuses:
	}
}

// differInFallback changes the defaults of scalars, and of the keys of map lists.
func (g generator) differInFallback(p *props) {
	if p.XListType != nil && *p.XListType == "map" {
		key := p.Items.Schema.Properties["a"]
		key.Default = g.oneOf(`"a"`, `"b"`)
		p.Default, p.Items.Schema.Properties["a"], p.Items.Schema.Required = nil, key, nil
		if key.Default == nil {
			p.Items.Schema.Required = []string{"a"}
		}
		return
	}
	p.Default = nil
	if len(p.Enum) > 0 || p.Pattern != "" {
		return
	}
	switch p.Type {
	case "string":
		p.Default = g.oneOf(`"a"`, `"ab"`)
	case "integer", "number":
		p.Default = g.oneOf("1", "2")
	case "boolean":
		p.Default = g.oneOf("true", "false")
	}
}

// notice adds a condition to an object that depends on whether its properties exist. A default
// that only one schema has then affects more than its property.
func (g generator) notice(p *props) {
	if p.Type != "object" || len(p.Properties) == 0 || !g.chance(25) {
		return
	}
	given := props{Required: []string{pick(g.sampler, slices.Sorted(maps.Keys(p.Properties)))}}
	p.AllOf, p.AnyOf, p.OneOf, p.Not, p.MaxProperties = nil, nil, nil, nil, nil
	switch g.IntN(5) {
	case 0:
		p.MaxProperties = ptr(int64(1 + g.IntN(4)))
	case 1:
		p.Not = &given
	case 2:
		p.AllOf = []props{{Not: &given}}
	case 3:
		p.AnyOf = []props{{Not: &given}, g.clause(p)}
	default:
		p.OneOf = []props{given, g.clause(p)}
	}
}

// oneOf returns one of some values, or none.
func (g generator) oneOf(values ...string) *apiextensionsv1.JSON {
	if g.chance(30) {
		return nil
	}
	return &apiextensionsv1.JSON{Raw: []byte(pick(g.sampler, values))}
}

// varyRoot returns a schema that is similar to another one.
func (g generator) varyRoot(p *props) *props {
	varied := p.DeepCopy()
	for _, name := range slices.Sorted(maps.Keys(varied.Properties)) {
		if name == "metadata" {
			continue
		}
		child := varied.Properties[name]
		varied.Properties[name] = *g.vary(&child, 3, 6)
	}
	if g.chance(5) {
		varied.XPreserveUnknownFields = nil
	}
	return varied
}

// usable reports whether an API server would accept the schema: it is structural, its defaults
// are valid, and its rules compile.
func usable(p *props) bool {
	root, err := read(p)
	if err != nil {
		return false
	}
	if _, err := structural(p); err != nil {
		return false
	}
	return usableNode(root)
}

func usableNode(n *node) bool {
	if n.impossible {
		return true
	}
	if n.fallback != "" && !accepts(n, n.fallback) || !rulesFit(n) {
		return false
	}
	for _, p := range n.properties {
		if !usableNode(p) {
			return false
		}
	}
	return (n.items == nil || usableNode(n.items)) && (n.additional == nil || usableNode(n.additional))
}

func rulesFit(n *node) bool {
	unfits, err := compileRules(n, false)
	return err == nil && !slices.ContainsFunc(unfits, func(u invalidRule) bool { return u != invalidRule{} })
}

// family returns similar offers.
func family(g generator, size int) []Offer {
	for {
		base := g.root()
		if !usable(base) {
			continue
		}
		offers := make([]Offer, 0, size)
		for len(offers) < size {
			if p := g.varyRoot(base); usable(p) {
				offers = append(offers, offerOf(fmt.Sprintf("cluster-%d", len(offers)), p))
			}
		}
		return offers
	}
}

func offerOf(location string, p *props) Offer {
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return Offer{Location: location, Spec: apiresourcev1alpha1.CommonAPIResourceSpec{
		GroupVersion:    apiresourcev1alpha1.GroupVersion{Group: "example.rik.dev", Version: "v1"},
		Scope:           apiextensionsv1.NamespaceScoped,
		Names:           apiextensionsv1.CustomResourceDefinitionNames{Plural: "examples", Kind: "Example"},
		OpenAPIV3Schema: runtime.RawExtension{Raw: raw},
	}}
}

func propsOf(t rapid.TB, o *apiresourcev1alpha1.CommonAPIResourceSpec) *props {
	t.Helper()
	p, err := Parse(o.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
