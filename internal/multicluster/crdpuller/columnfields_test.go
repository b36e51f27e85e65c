package crdpuller

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestColumnsNeedTheirFields tests an older version of a type that lacks some fields of the
// columns.
func TestColumnsNeedTheirFields(t *testing.T) {
	t.Parallel()
	list := func(item props) props {
		return props{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &item}}
	}
	object := func(fields map[string]props) props { return props{Type: "object", Properties: fields} }
	rules := list(object(map[string]props{"host": {Type: "string"}}))
	whole := object(map[string]props{"spec": object(map[string]props{"rules": rules, "plain": {Type: "string"}})})
	for path, want := range map[string]bool{
		".spec.plain":                        true,
		".spec.rules[*].host":                true,
		`.spec.rules[?(@.host=="a.b")].host`: true,
		".spec.rules[*].path":                false,
		".spec.plain[*]":                     false,
		".spec.absent":                       false,
		".status.phase":                      false,
	} {
		if got := hasField(&whole, path); got != want {
			t.Errorf("hasField(%s) = %v, want %v", path, got, want)
		}
	}
	var names []string
	for _, c := range columnsOf(schema.GroupKind{Group: "networking.k8s.io", Kind: "Ingress"}, &whole) {
		names = append(names, c.Name)
	}
	if len(names) != 2 || names[0] != "Hosts" || names[1] != "Age" {
		t.Errorf("columns %q, want those whose fields are there", names)
	}
}
