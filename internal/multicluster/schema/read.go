package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// metaKeys are the properties that every resource has, whatever its schema contains.
var metaKeys = []string{"apiVersion", "kind", "metadata"}

// libraryForms returns a schema in the two forms that the library for CRDs works with. It returns
// an error if the schema is not structural.
func libraryForms(props *apiextensionsv1.JSONSchemaProps) (*apiextensions.JSONSchemaProps, *structuralschema.Structural, error) {
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, internal, nil); err != nil {
		return nil, nil, fmt.Errorf("converting the schema: %w", err)
	}
	s, err := structuralschema.NewStructural(internal)
	if err != nil {
		return nil, nil, fmt.Errorf("the schema is not structural: %w", err)
	}
	return internal, s, nil
}

// structural checks that a schema is structural, as a CRD requires.
func structural(props *apiextensionsv1.JSONSchemaProps) (*structuralschema.Structural, error) {
	_, s, err := libraryForms(props)
	if err != nil {
		return nil, err
	}
	if errs := structuralschema.ValidateStructural(nil, s); len(errs) > 0 {
		return nil, fmt.Errorf("the schema is not structural: %w", errs.ToAggregate())
	}
	return s, nil
}

// readRoot returns the node of a whole resource.
func readRoot(props *apiextensionsv1.JSONSchemaProps) (*node, error) {
	if _, err := structural(props); err != nil {
		return nil, err
	}
	root, err := read(props)
	if err != nil {
		return nil, err
	}
	root.fallback = ""
	root.addMeta()
	return root, nil
}

// addMeta adds the properties that pruning always keeps in a resource. Pruning by the schema does
// not affect the fields below metadata.
func (n *node) addMeta() {
	if n.properties == nil {
		n.properties = map[string]*node{}
	}
	for _, key := range metaKeys {
		p := n.properties[key]
		if p == nil {
			p = &node{kinds: stringsKind}
			if key == "metadata" {
				p = &node{kinds: objects}
			}
			n.properties[key] = p
		}
		if key == "metadata" && p.has(objects) && p.rest == closed {
			p.rest = open
		}
	}
}

var kindsOf = map[string]kinds{
	"object": objects, "array": arrays, "string": stringsKind, "boolean": booleans, "number": numbers, "integer": integers,
}

func read(p *apiextensionsv1.JSONSchemaProps) (*node, error) {
	if isImpossible(p) {
		return &node{impossible: true}, nil
	}
	if p.UniqueItems {
		return nil, errors.New("uniqueItems is not allowed in a CRD: use x-kubernetes-list-type: set")
	}
	n := &node{title: p.Title, description: p.Description, nullable: p.Nullable}
	preserve := p.XPreserveUnknownFields != nil && *p.XPreserveUnknownFields
	switch {
	case p.Type != "":
		n.kinds = kindsOf[p.Type]
	case p.XIntOrString:
		n.kinds = intOrString
	case preserve:
		n.kinds = anything
	}
	// The validation ignores a type next to x-kubernetes-int-or-string.
	if p.XIntOrString {
		n.kinds = intOrString
	}
	if n.kinds == 0 {
		return nil, fmt.Errorf("type %q is not known", p.Type)
	}
	for _, step := range []func(*node, *apiextensionsv1.JSONSchemaProps) error{readValues, readClauses, readArray, readObject} {
		if err := step(n, p); err != nil {
			return nil, err
		}
	}
	readNumber(n, p)
	readString(n, p)
	if preserve {
		n.preserve(p)
	}
	n.strip()
	if n.kinds == integers && (!fitsIntegers(p) || !n.integral()) {
		return &node{impossible: true}, nil
	}
	return n, nil
}

// isImpossible recognizes the form in which write stores an impossible node.
func isImpossible(p *apiextensionsv1.JSONSchemaProps) bool {
	return p.Type == "" && !p.XIntOrString && p.Not != nil && reflect.DeepEqual(*p.Not, apiextensionsv1.JSONSchemaProps{})
}

// preserve makes an object keep unknown keys. In an array, the keyword applies to the items.
func (n *node) preserve(p *apiextensionsv1.JSONSchemaProps) {
	n.open(p)
	for i, items := n.items, p.Items; i != nil; i, items = i.items, items.Schema.Items {
		if i.has(objects) {
			i.open(items.Schema)
		}
	}
}

// open makes an object keep unknown keys. With additionalProperties: false, the validation still
// refuses all of them. Without this keyword, pruning hides that.
func (n *node) open(p *apiextensionsv1.JSONSchemaProps) {
	if n.rest != closed {
		return
	}
	n.rest = open
	if a := p.AdditionalProperties; a != nil && a.Schema == nil && !a.Allows && len(n.properties) == 0 {
		n.maxProperties = new(int64(0))
	}
}

// fitsIntegers reports whether every bound is an integer of the format. If one is not, the
// validation refuses all values of type integer.
func fitsIntegers(p *apiextensionsv1.JSONSchemaProps) bool {
	if p.XIntOrString {
		return true
	}
	for _, v := range []*float64{p.Maximum, p.Minimum, p.MultipleOf} {
		if v != nil && !fitsInteger(*v, p.Format) {
			return false
		}
	}
	return true
}

func fitsInteger(v float64, format string) bool {
	low, high := integerRange(format)
	return v == math.Trunc(v) && v >= low && v <= high
}

func readValues(n *node, p *apiextensionsv1.JSONSchemaProps) error {
	if p.Default != nil && string(p.Default.Raw) != "null" && len(p.Default.Raw) > 0 {
		var err error
		if n.fallback, err = canonical(p.Default.Raw); err != nil {
			return fmt.Errorf("reading the default %s: %w", p.Default.Raw, err)
		}
	}
	for _, v := range p.Enum {
		value, err := canonical(v.Raw)
		if err != nil {
			return fmt.Errorf("reading the enum value %s: %w", v.Raw, err)
		}
		n.enum = append(n.enum, value)
	}
	n.enum = sortedSet(n.enum)
	return nil
}

// canonical returns the canonical form of a JSON value. Equal values have equal forms.
func canonical(raw []byte) (string, error) {
	value, err := decode(raw)
	if err != nil {
		return "", err
	}
	return encode(value), nil
}

func decode(raw []byte) (any, error) {
	var value any
	err := utiljson.Unmarshal(raw, &value)
	return value, err
}

// encode does not escape < and &, because users read patterns and rules.
func encode(value any) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(fmt.Sprintf("programmer error: encoding a JSON value: %v", err))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func sortedSet[T ~string](values []T) []T {
	if len(values) == 0 {
		return nil
	}
	s := slices.Clone(values)
	slices.Sort(s)
	return slices.Compact(s)
}

func readNumber(n *node, p *apiextensionsv1.JSONSchemaProps) {
	if p.Maximum != nil {
		n.maximum = append(n.maximum, bound{*p.Maximum, p.ExclusiveMaximum})
	}
	if p.Minimum != nil {
		n.minimum = append(n.minimum, bound{*p.Minimum, p.ExclusiveMinimum})
	}
	if p.MultipleOf != nil {
		n.multiples = append(n.multiples, *p.MultipleOf)
	}
	n.maximum, n.minimum = above.tightest(n.maximum), below.tightest(n.minimum)
	slices.Sort(n.multiples)
	n.multiples = slices.Compact(n.multiples)
	if n.kinds == integers || n.kinds == numbers {
		n.numberFormat = p.Format
	}
}

func readString(n *node, p *apiextensionsv1.JSONSchemaProps) {
	n.minLength, n.maxLength = positive(p.MinLength), p.MaxLength
	if p.Pattern != "" {
		n.patterns = append(n.patterns, p.Pattern)
	}
	n.patterns = sortedSet(n.patterns)
	if p.Format != "" && (n.kinds == stringsKind || n.kinds == intOrString) {
		n.formats = append(n.formats, p.Format)
	}
	n.formats = sortedSet(n.formats)
}

// positive returns nil for a lower limit that has no effect.
func positive(v *int64) *int64 {
	if v != nil && *v <= 0 {
		return nil
	}
	return v
}

func readArray(n *node, p *apiextensionsv1.JSONSchemaProps) error {
	n.minItems, n.maxItems = positive(p.MinItems), p.MaxItems
	if p.XListType != nil && *p.XListType != "atomic" {
		n.listType, n.mapKeys = *p.XListType, sortedSet(p.XListMapKeys)
	}
	if p.Items == nil || p.Items.Schema == nil {
		return nil
	}
	var err error
	if n.items, err = read(p.Items.Schema); err != nil {
		return fmt.Errorf("items: %w", err)
	}
	return nil
}

func readObject(n *node, p *apiextensionsv1.JSONSchemaProps) error {
	n.minProperties, n.maxProperties = positive(p.MinProperties), p.MaxProperties
	n.required = sortedSet(p.Required)
	if p.XMapType != nil && *p.XMapType != "granular" {
		n.mapType = *p.XMapType
	}
	for key := range p.Properties {
		child := p.Properties[key]
		value, err := read(&child)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if n.properties == nil {
			n.properties = make(map[string]*node, len(p.Properties))
		}
		n.properties[key] = value
	}
	if p.XEmbeddedResource {
		n.embedded = true
		n.required = sortedSet(append(n.required, "apiVersion", "kind"))
		n.addMeta()
	}
	return readAdditional(n, p)
}

func readAdditional(n *node, p *apiextensionsv1.JSONSchemaProps) error {
	switch a := p.AdditionalProperties; {
	case a == nil || a.Schema == nil && !a.Allows:
	case a.Schema == nil:
		n.rest = shallow
	default:
		var err error
		if n.additional, err = read(a.Schema); err != nil {
			return fmt.Errorf("additionalProperties: %w", err)
		}
		if !n.additional.impossible {
			n.rest = mapped
		} else {
			n.additional = nil
		}
	}
	return nil
}

// readClauses copies the clauses, except those that the node itself can express.
func readClauses(n *node, p *apiextensionsv1.JSONSchemaProps) error {
	for i := range p.AllOf {
		clause := p.AllOf[i]
		if p.XIntOrString && isIntOrString(clause.AnyOf) {
			clause.AnyOf = nil
		}
		if !n.absorb(&clause) && !isTrivial(&clause) {
			n.allOf = append(n.allOf, encode(clause))
		}
	}
	if p.Format != "" && n.kinds == anything {
		n.allOf = append(n.allOf, encode(apiextensionsv1.JSONSchemaProps{Format: p.Format}))
	}
	if len(p.AnyOf) > 0 && (!p.XIntOrString || !isIntOrString(p.AnyOf)) {
		n.anyOf = append(n.anyOf, group(p.AnyOf, true))
	}
	if len(p.OneOf) > 0 {
		n.oneOf = append(n.oneOf, group(p.OneOf, false))
	}
	if p.Not != nil {
		n.not = append(n.not, encode(p.Not))
	}
	n.allOf, n.anyOf, n.oneOf, n.not = sortedSet(n.allOf), sortedSet(n.anyOf), sortedSet(n.oneOf), sortedSet(n.not)
	for i := range p.XValidations {
		n.rules = append(n.rules, encode(p.XValidations[i]))
	}
	n.rules = sortedSet(n.rules)
	return nil
}

func isTrivial(p *apiextensionsv1.JSONSchemaProps) bool {
	return reflect.DeepEqual(*p, apiextensionsv1.JSONSchemaProps{})
}

func isIntOrString(clauses []apiextensionsv1.JSONSchemaProps) bool {
	return reflect.DeepEqual(clauses, []apiextensionsv1.JSONSchemaProps{{Type: "integer"}, {Type: "string"}})
}

// group returns the canonical form of the alternatives of anyOf or oneOf.
func group(clauses []apiextensionsv1.JSONSchemaProps, set bool) string {
	var encoded []string
	for i := range clauses {
		encoded = append(encoded, encode(clauses[i]))
	}
	slices.Sort(encoded)
	if set {
		// For anyOf, equal alternatives have no effect. For oneOf they have.
		encoded = slices.Compact(encoded)
	}
	raw := make([]json.RawMessage, len(encoded))
	for i := range encoded {
		raw[i] = json.RawMessage(encoded[i])
	}
	return encode(raw)
}

// absorb moves a clause of allOf into the node if both mean the same. What write has put into a
// clause returns to its place that way.
func (n *node) absorb(c *apiextensionsv1.JSONSchemaProps) bool {
	switch {
	case only(c, func(c *apiextensionsv1.JSONSchemaProps) { c.Pattern = "" }):
		n.patterns = append(n.patterns, c.Pattern)
	case only(c, func(c *apiextensionsv1.JSONSchemaProps) { c.MultipleOf = nil }):
		n.multiples = append(n.multiples, *c.MultipleOf)
	case n.kinds == stringsKind && only(c, func(c *apiextensionsv1.JSONSchemaProps) { c.Format = "" }):
		n.formats = append(n.formats, c.Format)
	// On type integer, a clause compares an integer that is written as a fraction, such as 2.0,
	// differently from the node.
	case n.kinds != integers && c.Maximum != nil && only(c, func(c *apiextensionsv1.JSONSchemaProps) { c.Maximum, c.ExclusiveMaximum = nil, false }):
		n.maximum = append(n.maximum, bound{*c.Maximum, c.ExclusiveMaximum})
	case n.kinds != integers && c.Minimum != nil && only(c, func(c *apiextensionsv1.JSONSchemaProps) { c.Minimum, c.ExclusiveMinimum = nil, false }):
		n.minimum = append(n.minimum, bound{*c.Minimum, c.ExclusiveMinimum})
	case only(c, func(c *apiextensionsv1.JSONSchemaProps) { c.AnyOf = nil }):
		n.anyOf = append(n.anyOf, group(c.AnyOf, true))
	case only(c, func(c *apiextensionsv1.JSONSchemaProps) { c.OneOf = nil }):
		n.oneOf = append(n.oneOf, group(c.OneOf, false))
	case only(c, func(c *apiextensionsv1.JSONSchemaProps) { c.Not = nil }):
		n.not = append(n.not, encode(c.Not))
	default:
		return false
	}
	return true
}

// only reports whether a clause contains nothing but what clearField removes.
func only(c *apiextensionsv1.JSONSchemaProps, clearField func(*apiextensionsv1.JSONSchemaProps)) bool {
	if isTrivial(c) {
		return false
	}
	rest := *c
	clearField(&rest)
	return isTrivial(&rest)
}
