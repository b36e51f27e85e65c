package schema

import (
	"encoding/json"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

var typeNames = map[kinds]string{
	integers: "integer", numbers: "number", stringsKind: "string", booleans: "boolean", arrays: "array", objects: "object",
}

// writeRoot returns the schema of a whole resource. It leaves out the fields that every resource
// has, unless the schema restricts them.
func writeRoot(n *node) *apiextensionsv1.JSONSchemaProps {
	p := write(n)
	for _, key := range metaKeys {
		value := p.Properties[key]
		if key == "metadata" {
			// A CRD may restrict only name and generateName in metadata.
			value = apiextensionsv1.JSONSchemaProps{Type: "object", Description: value.Description, Properties: value.Properties}
			p.Properties[key] = value
		}
		if value.Description == "" && len(n.properties[key].properties) == 0 && onlyType(&value) {
			delete(p.Properties, key)
		}
	}
	if len(p.Properties) == 0 {
		p.Properties = nil
	}
	return p
}

func onlyType(p *apiextensionsv1.JSONSchemaProps) bool {
	return only(p, func(c *apiextensionsv1.JSONSchemaProps) { c.Type = "" })
}

func write(n *node) *apiextensionsv1.JSONSchemaProps {
	keep := true
	if n.impossible {
		return &apiextensionsv1.JSONSchemaProps{XPreserveUnknownFields: &keep, Not: &apiextensionsv1.JSONSchemaProps{}}
	}
	p := &apiextensionsv1.JSONSchemaProps{
		Type: typeNames[n.kinds], Title: n.title, Description: n.description, Nullable: n.nullable,
		MinLength: n.minLength, MaxLength: n.maxLength, MinItems: n.minItems, MaxItems: n.maxItems,
		MinProperties: n.minProperties, MaxProperties: n.maxProperties,
		Required: n.required, XEmbeddedResource: n.embedded, XIntOrString: n.kinds == intOrString,
	}
	if n.fallback != "" {
		p.Default = &apiextensionsv1.JSON{Raw: []byte(n.fallback)}
	}
	for _, v := range n.enum {
		p.Enum = append(p.Enum, apiextensionsv1.JSON{Raw: []byte(v)})
	}
	if n.kinds == anything || n.kinds == objects && n.rest == open {
		p.XPreserveUnknownFields = &keep
	}
	writeArray(n, p)
	writeObject(n, p)
	writeNumber(n, p)
	writeString(n, p)
	writeClauses(n, p)
	return p
}

func writeArray(n *node, p *apiextensionsv1.JSONSchemaProps) {
	if n.listType != "" {
		p.XListType, p.XListMapKeys = &n.listType, n.mapKeys
	}
	switch {
	case n.items != nil:
		p.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: write(n.items)}
	case n.kinds == arrays:
		p.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: write(anyValue())}
	}
}

func writeObject(n *node, p *apiextensionsv1.JSONSchemaProps) {
	if n.mapType != "" {
		p.XMapType = &n.mapType
	}
	for key, value := range n.properties {
		if p.Properties == nil {
			p.Properties = make(map[string]apiextensionsv1.JSONSchemaProps, len(n.properties))
		}
		p.Properties[key] = *write(value)
	}
	switch n.rest {
	case shallow:
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true}
	case mapped:
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: write(n.additional)}
	case closed, open:
	}
}

func writeNumber(n *node, p *apiextensionsv1.JSONSchemaProps) {
	if n.numberFormat != "" {
		p.Format = n.numberFormat
	}
	for i, b := range n.maximum {
		if i == 0 {
			p.Maximum, p.ExclusiveMaximum = &b.value, b.exclusive
			continue
		}
		p.AllOf = append(p.AllOf, apiextensionsv1.JSONSchemaProps{Maximum: &b.value, ExclusiveMaximum: b.exclusive})
	}
	for i, b := range n.minimum {
		if i == 0 {
			p.Minimum, p.ExclusiveMinimum = &b.value, b.exclusive
			continue
		}
		p.AllOf = append(p.AllOf, apiextensionsv1.JSONSchemaProps{Minimum: &b.value, ExclusiveMinimum: b.exclusive})
	}
	for _, m := range n.multiples {
		// If the multipleOf of an integer is not an integer of its format, it refuses every value
		// in the schema itself. In a clause, it refuses only values that are not multiples.
		if p.MultipleOf == nil && (n.kinds != integers || fitsInteger(m, n.numberFormat)) {
			p.MultipleOf = &m
			continue
		}
		p.AllOf = append(p.AllOf, apiextensionsv1.JSONSchemaProps{MultipleOf: &m})
	}
}

func writeString(n *node, p *apiextensionsv1.JSONSchemaProps) {
	for i, pattern := range n.patterns {
		if i == 0 {
			p.Pattern = pattern
			continue
		}
		p.AllOf = append(p.AllOf, apiextensionsv1.JSONSchemaProps{Pattern: pattern})
	}
	for i, format := range n.formats {
		if i == 0 {
			p.Format = format
			continue
		}
		p.AllOf = append(p.AllOf, apiextensionsv1.JSONSchemaProps{Format: format})
	}
}

func writeClauses(n *node, p *apiextensionsv1.JSONSchemaProps) {
	for _, encoded := range n.allOf {
		clause := n.pruned(*clauseOf(encoded))
		if !isTrivial(&clause) {
			p.AllOf = append(p.AllOf, clause)
		}
	}
	for i, encoded := range n.not {
		clause := n.pruned(*clauseOf(encoded))
		if i == 0 {
			p.Not = &clause
			continue
		}
		p.AllOf = append(p.AllOf, apiextensionsv1.JSONSchemaProps{Not: &clause})
	}
	for i, encoded := range n.anyOf {
		clauses := n.prunedAll(clausesOf(encoded))
		if i == 0 {
			p.AnyOf = clauses
			continue
		}
		p.AllOf = append(p.AllOf, apiextensionsv1.JSONSchemaProps{AnyOf: clauses})
	}
	for i, encoded := range n.oneOf {
		clauses := n.prunedAll(clausesOf(encoded))
		if i == 0 {
			p.OneOf = clauses
			continue
		}
		p.AllOf = append(p.AllOf, apiextensionsv1.JSONSchemaProps{OneOf: clauses})
	}
	for _, encoded := range n.rules {
		var rule apiextensionsv1.ValidationRule
		mustDecode(encoded, &rule)
		p.XValidations = append(p.XValidations, rule)
	}
}

// pruned removes the properties and items from a clause that the node does not have. No document
// has them, so conditions about them are true, and a structural schema must not contain them.
func (n *node) pruned(c apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
	var properties map[string]apiextensionsv1.JSONSchemaProps
	for key := range c.Properties {
		if p := n.properties[key]; p != nil && !p.impossible {
			if properties == nil {
				properties = map[string]apiextensionsv1.JSONSchemaProps{}
			}
			properties[key] = p.pruned(c.Properties[key])
		}
	}
	c.Properties = properties
	switch {
	case c.Items == nil || c.Items.Schema == nil:
	case n.items == nil:
		c.Items = nil
	default:
		items := n.items.pruned(*c.Items.Schema)
		c.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}
	}
	c.AllOf, c.AnyOf, c.OneOf = n.prunedAll(c.AllOf), n.prunedAll(c.AnyOf), n.prunedAll(c.OneOf)
	if c.Not != nil {
		not := n.pruned(*c.Not)
		c.Not = &not
	}
	return c
}

// contradiction returns a not clause of a node that refuses everything after the properties in it
// were removed. It is empty if the node has no such clause.
func (n *node) contradiction() string {
	for _, encoded := range n.not {
		clause := n.pruned(*clauseOf(encoded))
		if isTrivial(&clause) {
			return encoded
		}
	}
	return ""
}

func (n *node) prunedAll(clauses []apiextensionsv1.JSONSchemaProps) []apiextensionsv1.JSONSchemaProps {
	pruned := slices.Clone(clauses)
	for i := range pruned {
		pruned[i] = n.pruned(pruned[i])
	}
	return pruned
}

func clauseOf(encoded string) *apiextensionsv1.JSONSchemaProps {
	p := &apiextensionsv1.JSONSchemaProps{}
	mustDecode(encoded, p)
	return p
}

func clausesOf(encoded string) []apiextensionsv1.JSONSchemaProps {
	var p []apiextensionsv1.JSONSchemaProps
	mustDecode(encoded, &p)
	return p
}

func mustDecode(encoded string, into any) {
	if err := json.Unmarshal([]byte(encoded), into); err != nil {
		panic(fmt.Sprintf("programmer error: decoding an encoded value: %v", err))
	}
}
