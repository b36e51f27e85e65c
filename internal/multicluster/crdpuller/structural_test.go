package crdpuller

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// convertText converts the model "Thing" with the given spec. others are more models, by name.
func convertText(t *testing.T, thingSpec string, others ...string) (*props, error) {
	t.Helper()
	text := `{"Thing": {"type": "object", "properties": {"metadata": {"type": "object"}, "spec": ` + thingSpec + `}}`
	for i := 0; i < len(others); i += 2 {
		text += fmt.Sprintf(`, %q: %s`, others[i], others[i+1])
	}
	models := map[string]*spec.Schema{}
	if err := json.Unmarshal([]byte(text+"}"), &models); err != nil {
		t.Fatalf("parsing the models: %v", err)
	}
	root, err := structural(models, "Thing")
	if err != nil {
		return nil, err
	}
	converted := root.Properties["spec"]
	return &converted, nil
}

func TestConversion(t *testing.T) {
	t.Parallel()
	const ref = `{"$ref": "#/components/schemas/Other"}`
	tests := []struct {
		name, spec, want string
		others           []string
	}{
		{name: "scalar with bounds", spec: `{"type": "integer", "format": "int32", "minimum": 1, "maximum": 9}`,
			want: `{"type": "integer", "format": "int32", "minimum": 1, "maximum": 9}`},
		{name: "reference", spec: ref, others: []string{"Other", `{"type": "string", "enum": ["a", "b"], "description": "of the model"}`},
			want: `{"type": "string", "enum": ["a", "b"], "description": "of the model"}`},
		{name: "reference that says more", spec: `{"allOf": [` + ref + `], "description": "of the field", "default": "a"}`,
			others: []string{"Other", `{"type": "string", "description": "of the model"}`},
			want:   `{"type": "string", "description": "of the field", "default": "a"}`},
		{name: "default that is Go's zero value", spec: `{"type": "object", "default": {}, "required": ["name"], "properties": {"name": {"type": "string", "default": ""}, "on": {"type": "boolean", "default": true}, "n": {"type": "integer", "default": 0}}}`,
			want: `{"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "on": {"type": "boolean", "default": true}, "n": {"type": "integer"}}}`},
		{name: "required of what is not there", spec: `{"type": "object", "required": ["a", "gone"], "properties": {"a": {"type": "string"}}}`,
			want: `{"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}`},
		{name: "map", spec: `{"type": "object", "additionalProperties": {"type": "string", "default": ""}}`,
			want: `{"type": "object", "additionalProperties": {"type": "string"}}`},
		{name: "object of which nothing is said", spec: `{"type": "object"}`, want: `{"type": "object", "x-kubernetes-preserve-unknown-fields": true}`},
		{name: "anything", spec: `{"description": "any"}`, want: `{"description": "any", "x-kubernetes-preserve-unknown-fields": true}`},
		{name: "int-or-string by format", spec: `{"type": "string", "format": "int-or-string"}`, want: `{"x-kubernetes-int-or-string": true}`},
		{name: "int-or-string by alternatives", spec: `{"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"}`, want: `{"x-kubernetes-int-or-string": true}`},
		{name: "embedded metadata", spec: `{"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}`,
			want: `{"type": "object", "x-kubernetes-preserve-unknown-fields": true}`},
		{name: "time", spec: `{"allOf": [{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Time"}], "description": "when"}`,
			want: `{"type": "string", "format": "date-time", "description": "when"}`},
		{name: "JSON", spec: `{"$ref": "#/components/schemas/io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON"}`,
			want: `{"x-kubernetes-preserve-unknown-fields": true}`},
		{name: "rules", spec: `{"type": "string", "x-kubernetes-validations": [{"rule": "self != ''"}]}`,
			want: `{"type": "string", "x-kubernetes-validations": [{"rule": "self != ''"}]}`},
		{name: "alternatives of values", spec: `{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}`,
			want: `{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := convertText(t, tc.spec, tc.others...)
			if err != nil {
				t.Fatal(err)
			}
			var want props
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Errorf("converted %s: %s", tc.spec, diff)
			}
			if err := checkStructural(&props{Type: "object", Properties: map[string]props{"spec": *got}}); err != nil {
				t.Errorf("converted %s: %v", tc.spec, err)
			}
		})
	}
}

// TestConversionOfLists tests rule 6 of the puller: the keys that identify items, and that every
// item has them.
func TestConversionOfLists(t *testing.T) {
	t.Parallel()
	const object = `{"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "protocol": {"type": "string"}, "o": {"type": "object", "properties": {"x": {"type": "string"}}}, "d": {"type": "string", "default": ""}}}`
	tests := []struct {
		name, list, kind string
		keys, required   []string
	}{
		{"said", `"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]`, "map", []string{"a"}, []string{"a"}},
		{"key that may be left out", `"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"]`, "map", []string{"a", "b"}, []string{"a", "b"}},
		{"key with a default", `"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["d"]`, "map", []string{"d"}, []string{"a"}},
		{"protocol", `"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["b", "protocol"]`, "map", []string{"b", "protocol"}, []string{"a", "b"}},
		{"key that is no scalar", `"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["o"]`, "atomic", nil, []string{"a"}},
		{"key that is not there", `"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["z"]`, "atomic", nil, []string{"a"}},
		{"merged by key", `"x-kubernetes-patch-strategy": "merge,retainKeys", "x-kubernetes-patch-merge-key": "a"`, "map", []string{"a"}, []string{"a"}},
		{"merged without key", `"x-kubernetes-patch-strategy": "merge"`, "atomic", nil, []string{"a"}},
		{"replaced", `"x-kubernetes-patch-strategy": "replace", "x-kubernetes-patch-merge-key": "a"`, "atomic", nil, []string{"a"}},
		{"nothing said", `"description": "d"`, "atomic", nil, []string{"a"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := convertText(t, `{"type": "array", "items": `+object+`, `+tc.list+`}`)
			if err != nil {
				t.Fatal(err)
			}
			if *got.XListType != tc.kind || !slices.Equal(got.XListMapKeys, tc.keys) || !slices.Equal(got.Items.Schema.Required, tc.required) {
				t.Errorf("a %s by %v that requires %v, want a %s by %v that requires %v",
					*got.XListType, got.XListMapKeys, got.Items.Schema.Required, tc.kind, tc.keys, tc.required)
			}
			if err := checkStructural(&props{Type: "object", Properties: map[string]props{"spec": *got}}); err != nil {
				t.Error(err)
			}
		})
	}
	for spec, want := range map[string]string{
		`{"type": "array", "items": {"type": "string"}, "x-kubernetes-patch-strategy": "merge"}`: "set",
		`{"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}`:        "set",
		`{"type": "array", "items": {"type": "string"}, "uniqueItems": true}`:                    "set",
		`{"type": "array", "items": {"type": "string"}}`:                                         "atomic",
		`{"type": "array", "items": ` + object + `, "x-kubernetes-list-type": "set"}`:            "atomic",
	} {
		got, err := convertText(t, spec)
		if err != nil || *got.XListType != want {
			t.Errorf("%s is a %v list, %v, want %s", spec, got, err, want)
		}
	}
}

func TestConversionRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec   string
		others []string
		want   error
		at     string
	}{
		"recursion":          {`{"$ref": "#/x/A"}`, []string{"A", `{"type": "object", "properties": {"next": {"type": "array", "items": {"$ref": "#/x/A"}}}}`}, ErrRecursive, ".spec.next[*]"},
		"recursion by two":   {`{"$ref": "#/x/A"}`, []string{"A", `{"type": "object", "properties": {"b": {"$ref": "#/x/B"}}}`, "B", `{"type": "object", "additionalProperties": {"$ref": "#/x/A"}}`}, ErrRecursive, ".spec.b[*]"},
		"root again":         {`{"$ref": "#/x/Thing"}`, nil, ErrRecursive, ".spec"},
		"missing model":      {`{"$ref": "#/x/Gone"}`, nil, ErrNoModel, "Gone"},
		"two types":          {`{"type": ["string", "integer"]}`, nil, ErrNotExpressible, ".spec"},
		"alternative types":  {`{"oneOf": [{"type": "string"}, {"type": "object"}]}`, nil, ErrNotExpressible, ".spec"},
		"alternative models": {`{"type": "object", "anyOf": [{"$ref": "#/x/A"}, {"$ref": "#/x/B"}]}`, nil, ErrNotExpressible, ".spec"},
		"list of what":       {`{"type": "array"}`, nil, ErrNotExpressible, ".spec"},
		"unique objects":     {`{"type": "array", "uniqueItems": true, "items": {"type": "object"}}`, nil, ErrNotExpressible, ".spec"},
		"fields and others":  {`{"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}`, nil, ErrNotExpressible, ".spec"},
		"fields by pattern":  {`{"type": "object", "patternProperties": {"^a": {"type": "string"}}}`, nil, ErrNotExpressible, ".spec"},
	} {
		if _, err := convertText(t, tc.spec, tc.others...); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.at) {
			t.Errorf("%s: %v, want %v at %s", name, err, tc.want, tc.at)
		}
	}
}

// TestConversionIsBounded converts thirty models, each of which contains the next one twice.
func TestConversionIsBounded(t *testing.T) {
	t.Parallel()
	var models []string
	for i := range 30 {
		next := fmt.Sprintf(`{"$ref": "#/x/M%d"}`, i+1)
		models = append(models, fmt.Sprintf("M%d", i), `{"type": "object", "properties": {"a": `+next+`, "b": `+next+`}}`)
	}
	models = append(models, "M30", `{"type": "string"}`)
	if _, err := convertText(t, `{"$ref": "#/x/M0"}`, models...); !errors.Is(err, ErrTooLarge) {
		t.Errorf("two to the thirtieth fields: %v, want %v", err, ErrTooLarge)
	}
}

func TestPreferred(t *testing.T) {
	t.Parallel()
	group := func(name string, versions ...string) *metav1.APIGroup {
		g := &metav1.APIGroup{Name: name}
		for _, v := range versions {
			g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{Version: v})
		}
		// the last one, so that the order differs from the preference
		g.PreferredVersion = g.Versions[len(g.Versions)-1]
		return g
	}
	list := func(gv string, resources ...string) *metav1.APIResourceList {
		l := &metav1.APIResourceList{GroupVersion: gv}
		for _, r := range resources {
			l.APIResources = append(l.APIResources, metav1.APIResource{Name: r, Kind: "K", Verbs: []string{"list", "watch"}})
		}
		return l
	}
	down := errors.New("down")
	tests := []struct {
		name          string
		groups        []*metav1.APIGroup
		lists         []*metav1.APIResourceList
		failed        map[schema.GroupVersion]error
		want, unknown []string
	}{
		{"preferred version first", []*metav1.APIGroup{group("a.io", "v1", "v2")},
			[]*metav1.APIResourceList{list("a.io/v1", "xs", "olds"), list("a.io/v2", "xs")}, nil, []string{"olds.a.io v1", "xs.a.io v2"}, nil},
		{"first types", []*metav1.APIGroup{group("", "v1")}, []*metav1.APIResourceList{list("v1", "pods", "pods/status", "pods/log")}, nil, []string{"pods.core v1"}, nil},
		{"preferred version down", []*metav1.APIGroup{group("a.io", "v1", "v2"), group("b.io", "v1")},
			[]*metav1.APIResourceList{list("a.io/v1", "xs"), list("b.io/v1", "ys")},
			map[schema.GroupVersion]error{{Group: "a.io", Version: "v2"}: down}, []string{"ys.b.io v1"}, []string{"a.io/v1", "a.io/v2"}},
		{"other version down", []*metav1.APIGroup{group("a.io", "v1", "v2")},
			[]*metav1.APIResourceList{list("a.io/v2", "xs")},
			map[schema.GroupVersion]error{{Group: "a.io", Version: "v1"}: down}, []string{"xs.a.io v2"}, []string{"a.io/v1"}},
		{"version down that the group leaves out", []*metav1.APIGroup{group("a.io", "v1")},
			[]*metav1.APIResourceList{list("a.io/v1", "xs")},
			map[schema.GroupVersion]error{{Group: "a.io", Version: "v9"}: down}, nil, []string{"a.io/v1", "a.io/v9"}},
		{"version without an answer", []*metav1.APIGroup{group("a.io", "v1")}, nil, nil, nil, []string{"a.io/v1"}},
		{"answer and a failure", []*metav1.APIGroup{group("a.io", "v1")}, []*metav1.APIResourceList{list("a.io/v1")},
			map[schema.GroupVersion]error{{Group: "a.io", Version: "v1"}: down}, nil, []string{"a.io/v1"}},
		{"names that are paths", []*metav1.APIGroup{group("../etc", "v1"), group("a.io", "v1")},
			[]*metav1.APIResourceList{list("../etc/v1", "xs"), list("a.io/v1", "..", "X", "xs")}, nil, []string{"xs.a.io v1"}, []string{"../etc/v1"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			all := preferred(tc.groups, tc.lists, tc.failed)
			var got, unknown []string
			for _, served := range all.types {
				got = append(got, served.crdName()+" "+served.resource.Version)
			}
			for _, gv := range all.unknown {
				unknown = append(unknown, gv.String())
			}
			if !slices.Equal(got, tc.want) || !slices.Equal(unknown, tc.unknown) {
				t.Errorf("preferred %v and unknown %v, want %v and %v", got, unknown, tc.want, tc.unknown)
			}
		})
	}
}

// TestVersionThatTheCRDLacks tests a CRD that was changed between two responses.
func TestVersionThatTheCRDLacks(t *testing.T) {
	t.Parallel()
	served := servedType{resource: schema.GroupVersionResource{Group: "a.io", Version: "v2", Resource: "xs"}, kind: schema.GroupVersionKind{Group: "a.io", Version: "v2", Kind: "X"}}
	found := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &props{Type: "object"}}}},
	}}
	crd := fromDefinition(served, found)
	if diff := cmp.Diff(permissive(), crd.Spec.Versions[0].Schema); diff != "" || crd.Spec.Versions[0].Name != "v2" {
		t.Errorf("version %s with the schema %s", crd.Spec.Versions[0].Name, diff)
	}
}
