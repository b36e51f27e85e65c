package schema

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// specSchema returns the offer of a resource whose .spec has a schema as YAML.
func specSchema(t *testing.T, location, spec string) Offer {
	t.Helper()
	p := &props{}
	if err := yaml.Unmarshal([]byte(spec), p); err != nil {
		t.Fatalf("decoding %s: %v", spec, err)
	}
	return offerOf(location, &props{Type: "object", Properties: map[string]props{"spec": *p}})
}

// check compares and meets two schemas of .spec. obstacles are the expected paths and reasons of
// Compatible, in order. meet is the expected schema of Meet.
func check(t *testing.T, existing, offered string, obstacles []string, meet string) {
	t.Helper()
	a, b := specSchema(t, "", existing), specSchema(t, "east", offered)
	found := Compatible(a, b)
	var said []string
	for _, o := range found {
		said = append(said, o.Path+": "+o.Reason)
		if o.CounterExample == "" {
			t.Errorf("%s: there is no counter-example", o.Path)
			continue
		}
		checkCounterExample(t, o, [][2]*offeredSchema{{mustRead(t, a)[0], mustRead(t, b)[0]}})
	}
	if diff := gocmp.Diff(obstacles, said); diff != "" {
		t.Errorf("obstacles (-want +got):\n%s", diff)
	}
	left := specSchema(t, "", meet)
	want := propsOf(t, &left.Spec)
	if meet == "" {
		want.Properties = nil
	}
	agreement, why := Meet(a, b)
	if agreement == nil {
		t.Fatalf("there is no meet: %v", why)
	}
	if diff := gocmp.Diff(want, propsOf(t, &agreement.Spec)); diff != "" {
		t.Errorf("meet (-want +got):\n%s", diff)
	}
}

// TestMeetTable has the cases of the prototype. A comment explains each row that deviates from it.
func TestMeetTable(t *testing.T) {
	t.Parallel()
	existing := `{type: object, properties: {p: {type: string}}}`
	for _, c := range []struct {
		name, existing, offered string
		obstacles               []string
		meet                    string
	}{
		{name: "more properties", existing: existing, offered: `{type: object, properties: {p: {type: string}, new: {type: string}}}`, meet: existing},
		{
			name: "fewer properties", existing: `{type: object, properties: {p: {type: string}, new: {type: string}}}`, offered: existing,
			obstacles: []string{".spec.new: there is no such property in east"}, meet: existing,
		},
		{
			name: "fewer and others: the intersection", existing: `{type: object, properties: {p: {type: string}, old: {type: string}}}`,
			offered:   `{type: object, properties: {p: {type: string}, new: {type: string}}}`,
			obstacles: []string{".spec.old: there is no such property in east"}, meet: existing,
		},
		{
			name: "any property of a compatible schema", existing: existing,
			offered: `{type: object, additionalProperties: {type: string}}`, meet: existing,
		},
		{
			// Deviation: the prototype refuses the whole schema. Here an optional property
			// without a meet is dropped and reported.
			name: "any property of an incompatible schema", existing: `{type: object, properties: {p: {type: string}, q: {type: object, properties: {sub: {type: string}}}}}`,
			offered:   `{type: object, additionalProperties: {type: string}}`,
			obstacles: []string{".spec.q: it is an object (the served schema), a string (east)"}, meet: existing,
		},
		{name: "any property", existing: existing, offered: `{type: object, additionalProperties: true}`, meet: `{type: object, properties: {p: {type: string}}}`},
		{name: "more properties with a number", existing: `{type: object, properties: {p: {type: number}}}`, offered: `{type: object, properties: {p: {type: number}, new: {type: number}}}`, meet: `{type: object, properties: {p: {type: number}}}`},
		{name: "with an integer", existing: `{type: object, properties: {p: {type: integer}}}`, offered: `{type: object, properties: {p: {type: number}, new: {type: integer}}}`, meet: `{type: object, properties: {p: {type: integer}}}`},
		{name: "with an integer or string", existing: `{type: object, properties: {p: {x-kubernetes-int-or-string: true}}}`, offered: `{type: object, properties: {p: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}, new: {type: string}}}`, meet: `{type: object, properties: {p: {x-kubernetes-int-or-string: true}}}`},
		{name: "with unknown fields", existing: `{type: object, properties: {p: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`, offered: `{type: object, properties: {p: {type: object, x-kubernetes-preserve-unknown-fields: true}, new: {type: string}}}`, meet: `{type: object, properties: {p: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`},
		{name: "with a boolean", existing: `{type: object, properties: {p: {type: boolean}}}`, offered: `{type: object, properties: {p: {type: boolean}, new: {type: boolean}}}`, meet: `{type: object, properties: {p: {type: boolean}}}`},
		{name: "with an array of objects", existing: `{type: object, properties: {p: {type: array, items: {type: object, properties: {a: {type: string}}}}}}`, offered: `{type: object, properties: {p: {type: array, items: {type: object, properties: {a: {type: string}, b: {type: string}}}}}}`, meet: `{type: object, properties: {p: {type: array, items: {type: object, properties: {a: {type: string}}}}}}`},
		{name: "with a map", existing: `{type: object, properties: {p: {type: object, additionalProperties: {type: string}}}}`, offered: `{type: object, properties: {p: {type: object, additionalProperties: {type: string}}, new: {type: string}}}`, meet: `{type: object, properties: {p: {type: object, additionalProperties: {type: string}}}}`},
		{
			// Deviation: the prototype expects no obstacle.
			name: "any property against a schema", existing: `{type: object, additionalProperties: true}`, offered: `{type: object, additionalProperties: {type: string}}`,
			obstacles: []string{".spec: it may have any other key, and not every value is accepted there"}, meet: `{type: object, additionalProperties: {type: string}}`,
		},
		{
			// Deviation: additionalProperties: true empties the objects. Of an array it keeps
			// only what the pruning of Kubernetes keeps. Strings do not change.
			name: "a schema against any property", existing: `{type: object, additionalProperties: {type: string}}`, offered: `{type: object, additionalProperties: true}`,
			meet: `{type: object, additionalProperties: {type: string}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			check(t, c.existing, c.offered, c.obstacles, c.meet)
		})
	}
}

func TestAlternativesAreCompared(t *testing.T) {
	t.Parallel()
	check(t, `{type: string, anyOf: [{pattern: "^a"}, {pattern: "^b"}]}`, `{type: string, anyOf: [{pattern: "^a"}, {pattern: "^c"}]}`,
		[]string{`.spec: the anyOf [{"pattern":"^a"},{"pattern":"^c"}] is added`},
		`{type: string, anyOf: [{pattern: "^a"}, {pattern: "^b"}], allOf: [{anyOf: [{pattern: "^a"}, {pattern: "^c"}]}]}`)
	check(t, `{type: string}`, `{type: string, not: {pattern: "^a"}}`, []string{`.spec: the not {"pattern":"^a"} is added`}, `{type: string, not: {pattern: "^a"}}`)
	check(t, `{type: string}`, `{type: string, oneOf: [{pattern: "^a"}, {pattern: "b$"}]}`,
		[]string{`.spec: the oneOf [{"pattern":"^a"},{"pattern":"b$"}] is added`}, `{type: string, oneOf: [{pattern: "^a"}, {pattern: "b$"}]}`)
}

func TestItemCountsAreCompared(t *testing.T) {
	t.Parallel()
	check(t, `{type: array, items: {type: string}, maxItems: 5}`, `{type: array, items: {type: string}, maxItems: 3, minItems: 1}`,
		[]string{".spec: minItems is 1, and was not set", ".spec: maxItems is 3, and was 5"}, `{type: array, items: {type: string}, maxItems: 3, minItems: 1}`)
}

func TestAllKeywordsAreCompared(t *testing.T) {
	t.Parallel()
	check(t, `{type: object, properties: {a: {type: string}}}`, `{type: object, required: [a], properties: {a: {type: string}}}`,
		[]string{".spec.a: it is required"}, `{type: object, required: [a], properties: {a: {type: string}}}`)
	check(t, `{type: object, additionalProperties: {type: string}}`, `{type: object, minProperties: 1, maxProperties: 2, additionalProperties: {type: string}}`,
		[]string{".spec: minProperties is 1, and was not set", ".spec: maxProperties is 2, and was not set"}, `{type: object, minProperties: 1, maxProperties: 2, additionalProperties: {type: string}}`)
	check(t, `{type: object, properties: {a: {type: string, nullable: true}}}`, `{type: object, properties: {a: {type: string}}}`,
		[]string{".spec.a: it may be null, and null is not accepted"}, `{type: object, properties: {a: {type: string}}}`)
	check(t, `{type: integer, maximum: 5}`, `{type: integer, maximum: 5, exclusiveMaximum: true}`,
		[]string{".spec: its maximum is 4, and was 5"}, `{type: integer, maximum: 4}`)
	check(t, `{type: number, maximum: 5}`, `{type: number, maximum: 5, exclusiveMaximum: true}`,
		[]string{".spec: its maximum is 5 (exclusive), and was 5"}, `{type: number, maximum: 5, exclusiveMaximum: true}`)
	check(t, `{type: object, properties: {a: {type: integer}}}`, `{type: object, properties: {a: {type: integer}}, x-kubernetes-validations: [{rule: "self.a > 1"}]}`,
		[]string{`.spec: the rule {"rule":"self.a > 1"} is added`}, `{type: object, properties: {a: {type: integer}}, x-kubernetes-validations: [{rule: "self.a > 1"}]}`)
	// If defaults differ, one of them is kept. They do not make documents invalid.
	check(t, `{type: object, properties: {a: {type: string, default: x}}}`, `{type: object, properties: {a: {type: string, default: w}}}`,
		nil, `{type: object, properties: {a: {type: string, default: w}}}`)
}

func TestDroppedPropertiesAreNotRequired(t *testing.T) {
	t.Parallel()
	a := specSchema(t, "east", `{type: object, required: [a], properties: {a: {type: string}}}`)
	b := specSchema(t, "west", `{type: object, properties: {b: {type: string}}}`)
	agreement, obstacles := Meet(a, b)
	if agreement == nil {
		t.Fatalf("there is no meet: %v", obstacles)
	}
	// Without .spec, the schemas are compatible. But the other member could not hold a document
	// with the required property, so .spec is dropped as a whole.
	if p := propsOf(t, &agreement.Spec); len(p.Properties) != 0 {
		t.Errorf("the meet keeps %v", p.Properties)
	}
	if len(agreement.Dropped) == 0 || !strings.Contains(agreement.Dropped[0].Reason, ".spec.a is required") {
		t.Errorf("dropped = %v, want that .spec.a is required", agreement.Dropped)
	}
}

func TestANewEnumIsAnObstacle(t *testing.T) {
	t.Parallel()
	check(t, `{type: string}`, `{type: string, enum: [a, b]}`, []string{`.spec: not accepted of its values: all but "a", "b"`}, `{type: string, enum: [a, b]}`)
}

func TestEnumsAreKept(t *testing.T) {
	t.Parallel()
	check(t, `{type: string, enum: [a, b]}`, `{type: string}`, nil, `{type: string, enum: [a, b]}`)
	check(t, `{type: object, properties: {p: {type: string, enum: [a]}}}`, `{type: object, properties: {p: {type: string, enum: [b]}}}`,
		[]string{".spec.p: no value of one enum is in the other"}, `{type: object}`)
}

func TestEqualConstructsAgree(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		`{type: integer, multipleOf: 2, maximum: 4, allOf: [{minimum: 1, maximum: 9}], anyOf: [{maximum: 3}, {minimum: 4}], not: {maximum: 0}}`,
		`{type: boolean, allOf: [{enum: [true]}]}`,
		`{type: string, maxLength: 4, pattern: a, format: byte}`,
	} {
		check(t, s, s, nil, s)
	}
}

func TestPropertiesAgainstNone(t *testing.T) {
	t.Parallel()
	check(t, `{type: object, properties: {p: {type: string}}}`, `{type: object}`,
		[]string{".spec.p: there is no such property in east"}, `{type: object}`)
	check(t, `{type: object, additionalProperties: {type: string}}`, `{type: object, properties: {p: {type: string}}}`,
		[]string{".spec: it may have any other key, and only known properties are kept"}, `{type: object, properties: {p: {type: string}}}`)
}

func TestAnEmptyObjectIsNotAnything(t *testing.T) {
	t.Parallel()
	check(t, `{type: object}`, `{type: object, required: [p], properties: {p: {type: string}}}`, []string{".spec.p: there is no such property in the served schema; .spec.p is required"}, "")
}

func TestNestedPropertiesOfOpenNodesAreCompared(t *testing.T) {
	t.Parallel()
	check(t, `{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {p: {type: string}}}`,
		`{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {p: {type: string, maxLength: 3}}}`,
		[]string{".spec.p: maxLength is 3, and was not set"},
		`{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {p: {type: string, maxLength: 3}}}`)
}

func TestLostEnumValuesAreNamed(t *testing.T) {
	t.Parallel()
	check(t, `{type: string, enum: [a, b]}`, `{type: string, enum: [b, c]}`, []string{`.spec: not accepted of its values: "a"`}, `{type: string, enum: [b]}`)
}

func TestAnyPropertyIsNotASchema(t *testing.T) {
	t.Parallel()
	check(t, `{type: object, additionalProperties: true}`, `{type: object, additionalProperties: {type: integer}}`,
		[]string{".spec: it may have any other key, and not every value is accepted there"}, `{type: object, additionalProperties: {type: integer}}`)
}

func TestOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	offers := []Offer{
		specSchema(t, "a", `{type: object, properties: {p: {type: string}, q: {type: integer}}}`),
		specSchema(t, "b", `{type: object, properties: {p: {type: integer}, q: {type: number, maximum: 2.5}}}`),
		specSchema(t, "c", `{type: object, properties: {p: {type: string}, q: {type: number, maximum: 2.7, exclusiveMaximum: true}}}`),
		specSchema(t, "d", `{type: object, x-kubernetes-preserve-unknown-fields: true}`),
		specSchema(t, "e", `{type: object, properties: {q: {x-kubernetes-int-or-string: true}}}`),
	}
	want, _ := agreeOn(t, offers)
	if want == nil {
		t.Fatal("there is no meet")
	}
	permute(offers, func(permuted []Offer) {
		if got, _ := agreeOn(t, permuted); gocmp.Diff(want, got) != "" {
			t.Fatalf("another order gives another meet:\n%s", gocmp.Diff(want, got))
		}
	})
}

// TestNamesScopeAndSubresourcesAreCompared tests the parts of a type that are not in its schema.
func TestNamesScopeAndSubresourcesAreCompared(t *testing.T) {
	t.Parallel()
	base := specSchema(t, "", `{type: object}`)
	base.Spec.SubResources = []apiresourcev1alpha1.SubResource{{Name: "status"}, {Name: "scale", Scale: &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}}}
	for _, c := range []struct {
		path   string
		change func(*apiresourcev1alpha1.CommonAPIResourceSpec)
		fatal  bool
	}{
		{".scope", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) { s.Scope = apiextensionsv1.ClusterScoped }, true},
		{".names.kind", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) {
			s.Names.Kind, s.Names.Singular, s.Names.ListKind = "Other", "example", "ExampleList"
		}, true},
		{".names.plural", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) { s.Names.Plural = "others" }, true},
		{".names.singular", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) { s.Names.Singular = "other" }, true},
		{".names.listKind", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) { s.Names.ListKind = "Others" }, true},
		{".groupVersion", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) { s.GroupVersion.Version = "v2" }, true},
		{".subresources.status", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) { s.SubResources = s.SubResources[1:] }, false},
		{".subresources.scale", func(s *apiresourcev1alpha1.CommonAPIResourceSpec) {
			s.SubResources[1].Scale.SpecReplicasPath = ".spec.size"
		}, false},
	} {
		t.Run(c.path, func(t *testing.T) {
			t.Parallel()
			other := Offer{Location: "east", Spec: *base.Spec.DeepCopy()}
			c.change(&other.Spec)
			found := Compatible(base, other)
			if len(found) != 1 || found[0].Path != c.path {
				t.Fatalf("Compatible = %v, want one obstacle at %s", found, c.path)
			}
			agreement, obstacles := Meet(base, other)
			if c.fatal && (agreement != nil || len(obstacles) != 1 || obstacles[0].Path != c.path) {
				t.Fatalf("Meet = %v, %v, want an obstacle at %s", agreement, obstacles, c.path)
			}
			if !c.fatal && (agreement == nil || len(agreement.Dropped) != 1 || len(agreement.Spec.SubResources) != 1) {
				t.Fatalf("Meet = %v, %v, want one subresource dropped", agreement, obstacles)
			}
		})
	}
}

// TestUnknownFieldsOfItems tests that x-kubernetes-preserve-unknown-fields on an array applies to
// the objects in it, at any depth of nested arrays.
func TestUnknownFieldsOfItems(t *testing.T) {
	t.Parallel()
	for _, depth := range []int{1, 2, 3} {
		items := `{type: object, properties: {a: {type: string}}}`
		for range depth - 1 {
			items = `{type: array, items: ` + items + `}`
		}
		known, whatever := `{type: array, items: `+items+`}`, `{type: array, x-kubernetes-preserve-unknown-fields: true, items: `+items+`}`
		check(t, whatever, known, []string{
			".spec" + strings.Repeat("[*]", depth) + ": it may have any other key, and only known properties are kept",
		}, known)
	}
}

// TestDefaultsInSets tests two items of a set that become equal by a default. The cluster that
// fills it in refuses them. The meet has the default, so it refuses them too.
func TestDefaultsInSets(t *testing.T) {
	t.Parallel()
	set := func(fallback, required string) string {
		return `{type: array, x-kubernetes-list-type: set, items: {type: object, x-kubernetes-map-type: atomic, ` + required +
			`properties: {a: {type: string` + fallback + `}, b: {type: string}}}}`
	}
	check(t, set(", default: x", ""), set(", default: w", ""), nil, set(", default: w", ""))
}

// TestFormatsOfNumbers tests that a format which the validation does not support on a type has no
// effect, and does not replace one that has.
func TestFormatsOfNumbers(t *testing.T) {
	t.Parallel()
	check(t, `{type: number, format: int32}`, `{type: number, format: float}`, []string{".spec: its format is float"}, `{type: number, format: float}`)
	check(t, `{type: number}`, `{type: number, format: int32}`, nil, `{type: number, format: int32}`)
	check(t, `{type: integer, format: int64}`, `{type: integer, format: int32}`, []string{".spec: its format is int32"}, `{type: integer, format: int32}`)
	check(t, `{type: number, format: double}`, `{type: number, format: float}`, []string{".spec: its format is float"}, `{type: number, format: float}`)
}

// Below -2 and at most -3 are the same bound for integers. So are the two zeros.
func TestBoundsOfIntegersHaveOneForm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ existing, offered, meet string }{
		{`{type: integer, maximum: -2, exclusiveMaximum: true}`, `{type: integer, maximum: -3}`, `{type: integer, maximum: -3}`},
		{`{type: integer, minimum: 1}`, `{type: integer, minimum: 0, exclusiveMinimum: true}`, `{type: integer, minimum: 1}`},
		// 2^60 minus one is not a float64.
		{
			`{type: integer, maximum: 1152921504606846976, exclusiveMaximum: true}`, `{type: integer}`,
			`{type: integer, maximum: 1152921504606846976, exclusiveMaximum: true}`,
		},
	} {
		agreement, why := Meet(specSchema(t, "", c.existing), specSchema(t, "east", c.offered))
		if agreement == nil {
			t.Fatalf("there is no meet of %s and %s: %v", c.existing, c.offered, why)
		}
		left := specSchema(t, "", c.meet)
		if diff := gocmp.Diff(propsOf(t, &left.Spec), propsOf(t, &agreement.Spec)); diff != "" {
			t.Errorf("meet of %s and %s (-want +got):\n%s", c.existing, c.offered, diff)
		}
	}
	if found := Compatible(specSchema(t, "", `{type: integer, maximum: 3, exclusiveMaximum: true}`), specSchema(t, "east", `{type: integer, maximum: 2}`)); len(found) > 0 {
		t.Errorf("below 3 and at most 2 are held to differ: %v", found)
	}
}

// In an earlier version, each of these depended on which two schemas were met first.
func TestMeetOfThreeInAnyOrder(t *testing.T) {
	t.Parallel()
	const (
		needsA   = `{x-kubernetes-preserve-unknown-fields: true, not: {properties: {a: {maximum: 1}}}, properties: {a: {type: %s}}}`
		anItem   = `{type: object, properties: {p: {type: string}, q: {type: array, x-kubernetes-list-type: set, items: {x-kubernetes-preserve-unknown-fields: true}}}}`
		granular = `{type: object, properties: {p: {type: string}, q: {type: array, items: {type: object, properties: {a: {type: string}}}}}}`
		atomic   = `{type: object, properties: {p: {type: string}, q: {type: array, items: {type: object, x-kubernetes-map-type: atomic, properties: {a: {type: string}}}}}}`
	)
	for _, c := range []struct {
		name    string
		schemas [3]string
		meet    string
	}{
		{
			"fractions that integers are compared with",
			[3]string{`{type: number}`, `{x-kubernetes-int-or-string: true, maximum: -2.5}`, `{x-kubernetes-int-or-string: true, maximum: -2.5, exclusiveMaximum: true}`},
			`{type: integer, maximum: -3}`,
		},
		{
			"a zero that was a fraction",
			[3]string{`{type: number}`, `{x-kubernetes-int-or-string: true, minimum: -0.5}`, `{type: integer, minimum: 0}`},
			`{type: integer, minimum: 0}`,
		},
		{"two zeros", [3]string{`{type: number, minimum: -0.0}`, `{type: number, minimum: 0}`, `{type: number, minimum: 0.0}`}, `{type: number, minimum: 0}`},
		{
			"a not of a property that is gone",
			[3]string{
				`{type: object, properties: {p: {type: string}, q: ` + fmt.Sprintf(needsA, "integer") + `}}`,
				`{type: object, properties: {p: {type: string}, q: ` + fmt.Sprintf(needsA, "string") + `}}`,
				`{type: object, properties: {p: {type: string}, q: ` + fmt.Sprintf(needsA, "number") + `}}`,
			},
			`{type: object, properties: {p: {type: string}}}`,
		},
		{
			"null becomes nothing where it may stay",
			[3]string{
				`{type: object, properties: {p: {type: string}, q: {type: array, items: {x-kubernetes-preserve-unknown-fields: true, nullable: true, default: []}}}}`,
				`{type: object, properties: {p: {type: string}, q: {type: array, items: {x-kubernetes-preserve-unknown-fields: true, nullable: true}}}}`,
				`{type: object, properties: {p: {type: string}, q: {type: array, items: {x-kubernetes-preserve-unknown-fields: true}}}}`,
			},
			`{type: object, properties: {p: {type: string}, q: {type: array, items: {x-kubernetes-preserve-unknown-fields: true}}}}`,
		},
		{
			"a default for null in a map, and one of a property",
			[3]string{
				`{type: object, properties: {p: {type: string}, q: {type: object, properties: {b: {type: boolean, default: true}}}}}`,
				`{type: object, properties: {p: {type: string}, q: {x-kubernetes-preserve-unknown-fields: true}}}`,
				`{type: object, properties: {p: {type: string}, q: {type: object, additionalProperties: {type: boolean, default: true}}}}`,
			},
			`{type: object, properties: {p: {type: string}, q: {type: object, properties: {b: {type: boolean, default: true}}}}}`,
		},
		{
			"a set of objects", [3]string{anItem, granular, atomic},
			`{type: object, properties: {p: {type: string}, q: {type: array, x-kubernetes-list-type: set, items: {type: object, x-kubernetes-map-type: atomic, properties: {a: {type: string}}}}}}`,
		},
		{
			"an embedded resource that keeps any key", [3]string{
				`{type: object, properties: {p: {type: string}, q: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}}}`,
				`{type: object, properties: {p: {type: string}, q: {type: object, additionalProperties: true}}}`,
				`{type: object, properties: {p: {type: string}, q: {type: object, additionalProperties: true}}}`,
			},
			`{type: object, properties: {p: {type: string}}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			left := specSchema(t, "", c.meet)
			want := propsOf(t, &left.Spec)
			permute([]Offer{specSchema(t, "a", c.schemas[0]), specSchema(t, "b", c.schemas[1]), specSchema(t, "c", c.schemas[2])}, func(o []Offer) {
				first, why := agreeOn(t, o[:2])
				if first == nil {
					t.Fatalf("%s and %s have no meet: %v", o[0].Location, o[1].Location, why)
				}
				got, why := agreeOn(t, []Offer{{Location: "meet", Spec: first.Spec}, o[2]})
				if got == nil {
					t.Fatalf("with %s met last, there is no meet: %v", o[2].Location, why)
				}
				if diff := gocmp.Diff(want, propsOf(t, &got.Spec)); diff != "" {
					t.Errorf("with %s met last, the meet is another (-want +got):\n%s", o[2].Location, diff)
				}
				if strings.Contains(text(&got.Spec), "-0") {
					t.Errorf("zero has a sign: %s", text(&got.Spec))
				}
			})
		})
	}
}

// Pruning hides additionalProperties: false, except where unknown fields are kept.
func TestNoOtherKeyIsAllowedWhereKeysAreKept(t *testing.T) {
	t.Parallel()
	member := specSchema(t, "east", `{type: object, properties: {l: {type: array, x-kubernetes-preserve-unknown-fields: true, items: {type: object, additionalProperties: false}}}}`)
	agreement, why := Meet(member, specSchema(t, "west", `{type: object, properties: {l: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}`))
	if agreement == nil {
		t.Fatalf("there is no meet: %v", why)
	}
	meet := mustRead(t, Offer{Location: "meet", Spec: agreement.Spec})[0]
	for _, item := range []map[string]any{{}, {"a": "b"}} {
		doc := map[string]any{
			"apiVersion": "example.rik.dev/v1", "kind": "Example", "metadata": map[string]any{"name": "example"},
			"spec": map[string]any{"l": []any{item}},
		}
		admitted, err := meet.ask().admit(doc)
		if allowed := len(item) == 0; allowed != (err == nil) {
			t.Errorf("the meet's answer to %v: %v", item, err)
		}
		if err == nil {
			if err := mustRead(t, member)[0].ask().holds(admitted); err != nil {
				t.Errorf("the meet accepts %v, and a member does not hold it: %v", item, err)
			}
		}
	}
}

// TestReasonsQuoteRulesOnce tests that a reason quotes a rule once, without the messages of the
// compiler.
func TestReasonsQuoteRulesOnce(t *testing.T) {
	t.Parallel()
	agreement, why := Meet(
		specSchema(t, "east", `{type: object, properties: {o: {type: object, properties: {a: {type: string}, b: {type: string}}, x-kubernetes-validations: [{rule: "self.b != ''"}, {rule: "has(self.b)"}]}}}`),
		specSchema(t, "west", `{type: object, properties: {o: {type: object, properties: {a: {type: string}}}}}`))
	if agreement == nil {
		t.Fatalf("there is no meet: %v", why)
	}
	var said []string
	for _, o := range agreement.Dropped {
		said = append(said, o.Path+": "+o.Reason)
	}
	if diff := gocmp.Diff([]string{`.spec.o: the rule "has(self.b)" needs the field b, which not all have`}, said); diff != "" {
		t.Errorf("dropped (-want +got):\n%s", diff)
	}
}

// TestDefaultsThatDiffer tests that a stored document has the values that every cluster has.
func TestDefaultsThatDiffer(t *testing.T) {
	t.Parallel()
	object := func(a, more string) string {
		return `{type: object, properties: {a: {` + a + `}, b: {type: string}}` + more + `}`
	}
	for name, c := range map[string]struct{ east, west, meet, optional, said string }{
		"two": {
			object("type: string, default: x", ""), object("type: string, default: w", ""), object("type: string, default: w", ""), "",
			`the default is "x" (east), "w" (west); "w" is stored`,
		},
		"one and none": {
			object("type: integer", ""), object("type: integer, default: 3", ""), object("type: integer, default: 3", ""), "",
			`the default is nothing (east), 3 (west); 3 is stored`,
		},
		"one that the other refuses": {
			object("type: string, default: x", ""), object("type: string, default: w, enum: [z, w]", ""), object("type: string, default: w, enum: [w, z]", ""), "",
			`the default is "x" (east), "w" (west); "w" is stored`,
		},
		"each refuses the other's": {
			object("type: string, default: x, enum: [x, z]", ""), object("type: string, default: w, enum: [z, w]", ""), object("type: string, enum: [z]", ", required: [a]"),
			object("type: string, enum: [z]", ""), `the default is "x" (east), "w" (west); it has to be given`,
		},
		"one below a minimum": {
			object("type: integer, default: 1", ""), object("type: integer, default: 3, minimum: 2", ""), object("type: integer, default: 3, minimum: 2", ""), "",
			`the default is 1 (east), 3 (west); 3 is stored`,
		},
		"one that others want from users": {
			object("type: string, default: x", ""), object("type: string", ", required: [a]"), object("type: string", ", required: [a]"), "",
			`the default is "x" (east), nothing (west); it has to be given`,
		},
		"one that would take documents away": {
			object("type: string, default: x", ""), object("type: string", ", oneOf: [{required: [a]}, {required: [b]}]"), object("type: string", ", oneOf: [{required: [a]}, {required: [b]}]"), "",
			`the default is "x" (east), nothing (west); each fills in its own`,
		},
		"null": {
			object("type: integer, nullable: true, default: 3", ""), object("type: integer, nullable: true, default: 4", ""), object("type: integer, nullable: true, default: 3", ""), "",
			`the default is 3 (east), 4 (west); 3 is stored`,
		},
		"objects": {
			object("type: object, default: {}, properties: {c: {type: string, default: x}}", ""), object("type: object, properties: {c: {type: string, default: x}}", ""),
			object("type: object, default: {}, properties: {c: {type: string, default: x}}", ""), "", `the default is {} (east), nothing (west); {} is stored`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			offers := []Offer{specSchema(t, "west", c.west), specSchema(t, "east", c.east)}
			for want, meet := range map[string]func(...Offer) (*Agreement, []apiresourcev1alpha1.Obstacle){c.meet: Meet, cmp.Or(c.optional, c.meet): MeetOptional} {
				agreement, why := meet(offers...)
				if agreement == nil {
					t.Fatalf("there is no meet: %v", why)
				}
				left := specSchema(t, "", want)
				if diff := gocmp.Diff(propsOf(t, &left.Spec), propsOf(t, &agreement.Spec)); diff != "" {
					t.Errorf("meet (-want +got):\n%s", diff)
				}
			}
			agreement, _ := Meet(offers...)
			if len(agreement.Dropped) != 1 || agreement.Dropped[0].Reason != c.said {
				t.Errorf("dropped = %v, want that %s", agreement.Dropped, c.said)
			}
		})
	}
}
