package crdpuller

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// maxNodes limits the nodes of one type. A Pod has about two thousand. With references, a small
// document can describe an endless type.
const maxNodes = 50_000

// props is a node of a structural schema.
type props = apiextensionsv1.JSONSchemaProps

// structural converts the model of an object to the schema of a CRD. It replaces references by
// their targets. Parts that a CRD does not accept are expressed in another way or cause an error.
// They are not left out if that would make more objects valid.
func structural(models map[string]*spec.Schema, name string) (*props, error) {
	c := &converter{models: models, within: []string{name}}
	root, err := c.node(models[name], field{})
	if err != nil {
		return nil, err
	}
	// The server handles the fields that every object has.
	root.Properties["metadata"] = props{Type: "object"}
	root.Required = slices.DeleteFunc(root.Required, func(name string) bool {
		return name == "metadata" || name == "apiVersion" || name == "kind"
	})
	root.Default = nil
	return root, nil
}

// converter converts one type.
type converter struct {
	models map[string]*spec.Schema
	within []string // the models that contain the current node
	nodes  int
}

// field is the position of the conversion.
type field struct {
	path string
	// keys are the fields that identify the items of a list, in an item of that list.
	keys []string
}

func (f field) child(name string) field { return field{path: f.path + "." + name} }

func (c *converter) node(s *spec.Schema, at field) (*props, error) {
	if c.nodes++; c.nodes > maxNodes {
		return nil, fmt.Errorf("the type has more than %d fields: %w", maxNodes, ErrTooLarge)
	}
	if name, ok := reference(s); ok {
		return c.reference(s, name, at)
	}
	p, err := c.own(s, at)
	if err != nil {
		return nil, err
	}
	describe(p, s)
	return p, nil
}

// reference returns the model to which a node refers. Version 3 wraps a reference with additional
// keywords into an allOf with one element.
func reference(s *spec.Schema) (string, bool) {
	ref := s.Ref.String()
	if ref == "" && len(s.AllOf) == 1 && len(s.Type) == 0 && len(s.Properties) == 0 {
		ref = s.AllOf[0].Ref.String()
	}
	return ref[strings.LastIndex(ref, "/")+1:], ref != ""
}

func (c *converter) reference(s *spec.Schema, name string, at field) (*props, error) {
	p := wellKnown(name)
	if p == nil {
		model := c.models[name]
		switch {
		case model == nil:
			return nil, fmt.Errorf("%s refers to %s: %w", at.path, name, ErrNoModel)
		case slices.Contains(c.within, name):
			return nil, fmt.Errorf("%s contains %s, which contains this field: %w", at.path, name, ErrRecursive)
		}
		c.within = append(c.within, name)
		defer func() { c.within = c.within[:len(c.within)-1] }()
		var err error
		if p, err = c.node(model, at); err != nil {
			return nil, err
		}
	}
	describe(p, s)
	return p, nil
}

// describe copies the description and the default of a node.
func describe(p *props, s *spec.Schema) {
	if s.Description != "" {
		p.Description = s.Description
	}
	if !isZero(s.Default) {
		p.Default = toJSON(s.Default)
	}
	p.Nullable = p.Nullable || s.Nullable
}

// own converts the node itself.
func (c *converter) own(s *spec.Schema, at field) (*props, error) {
	if err := expressible(s); err != nil {
		return nil, fmt.Errorf("%s: %w", at.path, err)
	}
	p, err := validations(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at.path, err)
	}
	if isIntOrString(s) {
		// The extension alone expresses it.
		p.XIntOrString, p.Type, p.Format, p.AnyOf, p.OneOf = true, "", "", nil, nil
		return p, nil
	}
	switch p.Type {
	case "object":
		return p, c.object(p, s, at)
	case "array":
		return p, c.array(p, s, at)
	case "":
		return p, c.untyped(p, s, at)
	default:
		return p, nil
	}
}

func isIntOrString(s *spec.Schema) bool {
	said, _ := s.Extensions.GetBool("x-kubernetes-int-or-string")
	return said || s.Format == "int-or-string"
}

// untyped accepts any value, unless the node has fields or uses keywords that a CRD cannot
// express.
func (c *converter) untyped(p *props, s *spec.Schema, at field) error {
	if len(s.Properties) > 0 || s.AdditionalProperties != nil {
		p.Type = "object"
		return c.object(p, s, at)
	}
	if len(p.AllOf)+len(p.AnyOf)+len(p.OneOf) > 0 || p.Not != nil {
		return fmt.Errorf("%s: alternatives (allOf, anyOf, oneOf, not) without a type: %w", at.path, ErrNotExpressible)
	}
	preserve(p)
	return nil
}

func preserve(p *props) {
	yes := true
	p.XPreserveUnknownFields = &yes
}

func (c *converter) object(p *props, s *spec.Schema, at field) error {
	if err := c.additional(p, s, at); err != nil {
		return err
	}
	if len(s.Properties) == 0 {
		if p.AdditionalProperties == nil {
			preserve(p) // otherwise all content would be pruned
		}
		return nil
	}
	if p.AdditionalProperties != nil {
		return fmt.Errorf("%s: named fields together with a map of other fields: %w", at.path, ErrNotExpressible)
	}
	p.Properties = make(map[string]props, len(s.Properties))
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		child, err := c.node(&property, at.child(name))
		if err != nil {
			return err
		}
		if slices.Contains(at.keys, name) && !slices.Contains(s.Required, name) && property.Default != nil {
			// A key that may be omitted still has a value, which may be "".
			child.Default = toJSON(property.Default)
		}
		p.Properties[name] = *child
	}
	for _, name := range s.Required {
		if _, ok := p.Properties[name]; ok {
			p.Required = append(p.Required, name)
		}
	}
	return nil
}

// additional converts the values of a map.
func (c *converter) additional(p *props, s *spec.Schema, at field) error {
	switch {
	case s.AdditionalProperties == nil:
	case s.AdditionalProperties.Schema != nil:
		value, err := c.node(s.AdditionalProperties.Schema, field{path: at.path + "[*]"})
		if err != nil {
			return err
		}
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: value}
	case s.AdditionalProperties.Allows:
		preserve(p)
	}
	return nil
}

func (c *converter) array(p *props, s *spec.Schema, at field) error {
	if s.Items == nil || s.Items.Schema == nil {
		return fmt.Errorf("%s: a list without a type of its items: %w", at.path, ErrNotExpressible)
	}
	kind := listKindOf(s)
	item, err := c.node(s.Items.Schema, field{path: at.path + "[*]", keys: kind.keys})
	if err != nil {
		return err
	}
	p.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: item}
	if err := kind.apply(p, s.UniqueItems); err != nil {
		return fmt.Errorf("%s: %w", at.path, err)
	}
	return nil
}

// expressible rejects keywords that structural schemas do not have.
func expressible(s *spec.Schema) error {
	switch {
	case len(s.Type) > 1:
		return fmt.Errorf("more than one type: %w", ErrNotExpressible)
	case s.Items != nil && len(s.Items.Schemas) > 0, s.AdditionalItems != nil:
		return fmt.Errorf("items of different types: %w", ErrNotExpressible)
	case len(s.PatternProperties) > 0, len(s.Dependencies) > 0, len(s.Definitions) > 0:
		return fmt.Errorf("patterns, dependencies or definitions of fields: %w", ErrNotExpressible)
	default:
		return nil
	}
}

// validations copies type, bounds, alternatives and extensions, but not the nodes below.
func validations(s *spec.Schema) (*props, error) {
	p := &props{
		Format: s.Format, Pattern: s.Pattern,
		Maximum: s.Maximum, ExclusiveMaximum: s.ExclusiveMaximum, Minimum: s.Minimum, ExclusiveMinimum: s.ExclusiveMinimum,
		MaxLength: s.MaxLength, MinLength: s.MinLength, MaxItems: s.MaxItems, MinItems: s.MinItems,
		MultipleOf: s.MultipleOf, MaxProperties: s.MaxProperties, MinProperties: s.MinProperties,
	}
	if len(s.Type) == 1 {
		p.Type = s.Type[0]
	}
	for _, value := range s.Enum {
		p.Enum = append(p.Enum, *toJSON(value))
	}
	if mapType, ok := s.Extensions.GetString("x-kubernetes-map-type"); ok {
		p.XMapType = &mapType
	}
	if said, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); said {
		preserve(p)
	}
	p.XEmbeddedResource, _ = s.Extensions.GetBool("x-kubernetes-embedded-resource")
	if err := s.Extensions.GetObject("x-kubernetes-validations", &p.XValidations); err != nil {
		return nil, fmt.Errorf("x-kubernetes-validations: %w", err)
	}
	return p, alternatives(p, s)
}

// alternatives copies allOf, anyOf, oneOf and not, which contain no references in a CRD.
func alternatives(p *props, s *spec.Schema) error {
	if len(s.AllOf)+len(s.AnyOf)+len(s.OneOf) == 0 && s.Not == nil {
		return nil
	}
	raw, err := json.Marshal(spec.Schema{SchemaProps: spec.SchemaProps{AllOf: s.AllOf, AnyOf: s.AnyOf, OneOf: s.OneOf, Not: s.Not}})
	if err != nil {
		return fmt.Errorf("alternatives: %w", err)
	}
	if strings.Contains(string(raw), `"$ref"`) {
		return fmt.Errorf("alternatives (allOf, anyOf, oneOf, not) that refer to other types: %w", ErrNotExpressible)
	}
	var copied props
	if err := json.Unmarshal(raw, &copied); err != nil {
		return fmt.Errorf("alternatives: %w", err)
	}
	p.AllOf, p.AnyOf, p.OneOf, p.Not = copied.AllOf, copied.AnyOf, copied.OneOf, copied.Not
	return nil
}

// isZero reports whether a default is the zero value of a Go field. The generator writes such
// defaults too, also for required fields. As defaults of a CRD, they would make objects valid
// that the cluster refuses.
func isZero(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case bool:
		return !v
	case float64:
		return v == 0
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	default:
		return false
	}
}

func toJSON(value any) *apiextensionsv1.JSON {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("programmer error: what came from JSON cannot be written as JSON: %v", err))
	}
	return &apiextensionsv1.JSON{Raw: raw}
}

// checkStructural applies the rules of Kubernetes.
func checkStructural(p *props) error {
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(p, &internal, nil); err != nil {
		return fmt.Errorf("reading the schema: %w", err)
	}
	s, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return fmt.Errorf("the schema is not structural: %w", err)
	}
	if problems := structuralschema.ValidateStructural(nil, s); len(problems) > 0 {
		return fmt.Errorf("the schema is not structural, in %d places: %w", len(problems), problems[0])
	}
	return nil
}
