package schema

import "testing"

// TestStorableAs tests that one version of a type is stored as another one only if nothing is lost.
func TestStorableAs(t *testing.T) {
	t.Parallel()
	const small = `{type: object, properties: {size: {type: integer}}}`
	for name, c := range map[string]struct{ stored, other, want string }{
		"alike":                   {small, small, ""},
		"an optional field more":  {`{type: object, properties: {size: {type: integer}, more: {type: string}}}`, small, ""},
		"one with a default":      {`{type: object, properties: {size: {type: integer}, more: {type: string, default: a}}}`, small, ""},
		"a looser bound":          {`{type: object, properties: {size: {type: integer}}}`, `{type: object, properties: {size: {type: integer, maximum: 3}}}`, ""},
		"another description":     {`{type: object, description: a, properties: {size: {type: integer}}}`, small, ""},
		"a field less":            {small, `{type: object, properties: {size: {type: integer}, old: {type: string}}}`, ".spec.old: there is no such property in v1"},
		"a renamed field":         {`{type: object, properties: {capacity: {type: integer}}}`, small, ".spec.size: there is no such property in v1"},
		"another type":            {`{type: object, properties: {size: {type: string}}}`, small, ".spec.size: it is an integer (v1beta1), a string (v1)"},
		"a field that must be":    {`{type: object, required: [more], properties: {size: {type: integer}, more: {type: string}}}`, small, ".spec.more: there is no such property in v1beta1; .spec.more is required"},
		"fewer values":            {`{type: object, properties: {size: {type: integer, maximum: 3}}}`, small, ".spec.size: its maximum is 3, and was not set"},
		"unknown fields are kept": {small, `{type: object, x-kubernetes-preserve-unknown-fields: true}`, ".spec.size: it may be anything, and only an integer is accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := StorableAs(specSchema(t, "v1", c.stored), specSchema(t, "v1beta1", c.other)); got != c.want {
				t.Errorf("Beside() = %q, want %q", got, c.want)
			}
		})
	}
}
