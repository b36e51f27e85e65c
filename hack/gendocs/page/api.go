package page

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// prefix of the types that are rik's own.
const prefix = "rik.dev/rik/api/rik/v1alpha1."

// first are the objects that users write; the other types follow by name.
var first = []string{"Workload", "WorkloadRevision", "Instance", "Node", "Tenant"}

// API tables the fields of every type of rik.dev.
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

// object says whether a type is an object of its own, whose kind and
// apiVersion are the same for all.
func object(s *spec.Schema) bool {
	_, ok := s.Properties["apiVersion"]
	return ok
}

// typeOf is a field's type in words, with a link where it is one of rik's.
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

// cell makes a text fit into one cell of a table.
func cell(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
}
