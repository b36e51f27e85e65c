package schema

import (
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// A type may have a schema of a megabyte in which nothing is equal to another cluster's schema.
// The comparison still terminates.
func TestLargeAndDifferent(t *testing.T) {
	t.Parallel()
	const many = 6_000
	for name, of := range map[string]func(from int) *props{
		"properties": func(from int) *props {
			p := &props{Type: "object", Properties: map[string]props{}}
			for i := from; i < from+many; i++ {
				p.Properties[fmt.Sprintf("p%d", i)] = props{Type: "string"}
			}
			return p
		},
		"required": func(from int) *props {
			p := &props{Type: "object", Properties: map[string]props{}}
			for i := range many {
				name := fmt.Sprintf("p%d", i)
				p.Properties[name], p.Required = props{Type: "integer", Minimum: new(float64(from))}, append(p.Required, name)
			}
			return p
		},
		"enum": func(from int) *props {
			p := &props{Type: "string"}
			for i := from; i < from+many; i++ {
				p.Enum = append(p.Enum, apiextensionsv1.JSON{Raw: fmt.Appendf(nil, `"v%d"`, i)})
			}
			return p
		},
		"types": func(from int) *props {
			p := &props{Type: "object", Properties: map[string]props{}}
			for i := range many {
				p.Properties[fmt.Sprintf("p%d", i)] = props{Type: []string{"string", "integer"}[min(from, 1)]}
			}
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var offers []Offer
			for i, location := range []string{"east", "west", "north"} {
				offers = append(offers, offerOf(location, &props{Type: "object", Properties: map[string]props{"spec": *of(i * many / 4)}}))
			}
			if name == "required" || name == "types" {
				if Compatible(offers[0], offers[1]) == nil {
					t.Error("they are compatible")
				}
				return
			}
			if agreement, why := Meet(offers...); agreement == nil {
				t.Errorf("there is no meet: %v", why)
			}
		})
	}
}
