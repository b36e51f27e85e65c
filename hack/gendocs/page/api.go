package page

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// prefix is the prefix of rik's own types.
const prefix = "rik.dev/rik/api/rik/v1alpha1."

// first lists the objects that users write. The other types follow by name.
var first = []string{"Workload", "WorkloadRevision", "Instance", "Node", "Tenant"}

// API writes a table of the fields of each type of rik.dev.
func API(definitions common.GetOpenAPIDefinitions) string {
	types := map[string]spec.Schema{}
	for path, d := range definitions(func(path string) spec.Ref { return spec.MustCreateRef(path) }) {
		if name, own := strings.CutPrefix(path, prefix); own {
			types[name] = d.Schema
		}
	}
	page := "# rik.dev/v1alpha1\n\nThe fields of the objects. `rikctl explain workload.spec` shows the same for the\n" +
		"server in use. A field that is unknown is refused with its path.\n"
	rest := slices.DeleteFunc(slices.Sorted(maps.Keys(types)), func(name string) bool {
		return slices.Contains(first, name) || strings.HasSuffix(name, "List")
	})
	for _, name := range append(slices.Clone(first), rest...) {
		if s, ok := types[name]; ok {
			page += typeSection(name, &s)
		}
	}
	return page
}

func typeSection(name string, s *spec.Schema) string {
	text := fmt.Sprintf("\n## %s\n\n", name)
	if s.Description != "" {
		text += s.Description + "\n\n"
	}
	text += "| field | type | meaning |\n|---|---|---|\n"
	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		if object(s) && (field == "apiVersion" || field == "kind") {
			continue
		}
		p := s.Properties[field]
		meaning := p.Description
		if slices.Contains(s.Required, field) {
			meaning = strings.TrimSpace(meaning + " Required.")
		}
		text += fmt.Sprintf("| `%s` | %s | %s |\n", field, typeOf(&p), cell(meaning))
	}
	return text
}

// object reports whether a type is an object with apiVersion and kind. These fields are not
// described for each object.
func object(s *spec.Schema) bool {
	_, ok := s.Properties["apiVersion"]
	return ok
}

// typeOf returns the type of a field as text, with a link if it is a type of rik.
func typeOf(s *spec.Schema) string {
	switch {
	case s.Ref.String() != "":
		return link(s.Ref.String())
	case len(s.AllOf) == 1:
		return typeOf(&s.AllOf[0])
	case s.Items != nil && s.Items.Schema != nil:
		return "list of " + typeOf(s.Items.Schema)
	case s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil:
		return "map of " + typeOf(s.AdditionalProperties.Schema)
	case len(s.Type) > 0:
		return s.Type[0]
	default:
		return "any"
	}
}

func link(path string) string {
	if name, own := strings.CutPrefix(path, prefix); own {
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	}
	return path[strings.LastIndex(path, ".")+1:]
}

// cell returns a text in a form that fits into one cell of a table.
func cell(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
}
