package schema

import (
	"context"
	"os"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// pair is an entry of testdata/pairs.yaml. That file describes the fields.
type pair struct {
	Name          string
	Root          bool
	East, West    *props
	Kept, Refused []map[string]any
	Changes       []struct {
		From, To map[string]any
		Allowed  bool
	}
}

func readPairs(t *testing.T) []pair {
	t.Helper()
	raw, err := os.ReadFile("testdata/pairs.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var pairs []pair
	if err := yaml.UnmarshalStrict(raw, &pairs); err != nil {
		t.Fatal(err)
	}
	return pairs
}

func (p *pair) offer(t *testing.T, location string, schema *props) *offeredSchema {
	t.Helper()
	root := schema
	if !p.Root {
		root = &props{Type: "object", Properties: map[string]props{"spec": *schema}}
	}
	served(t, location, root)
	return mustRead(t, offerOf(location, root))[0]
}

func (p *pair) document(content map[string]any) map[string]any {
	doc := map[string]any{"spec": content}
	if p.Root {
		doc = content
	}
	doc["apiVersion"], doc["kind"], doc["metadata"] = "example.rik.dev/v1", "Example", map[string]any{"name": "example"}
	// In JSON, integral numbers are integers.
	doc, _ = mustValue(encode(doc)).(map[string]any)
	return doc
}

// served fails the test if an API server would refuse a CRD with the schema.
func served(t *testing.T, location string, schema *props) {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "examples.example.rik.dev"}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "example.rik.dev", Scope: apiextensionsv1.NamespaceScoped,
		Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "examples", Singular: "example", Kind: "Example", ListKind: "ExampleList"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema}}},
	}}
	crd.Status.StoredVersions = []string{"v1"}
	internal := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil); err != nil {
		t.Fatal(err)
	}
	if errs := validation.ValidateCustomResourceDefinition(t.Context(), internal); len(errs) > 0 {
		t.Fatalf("%s: no API server takes the schema: %v\n%s", location, errs.ToAggregate(), encode(schema))
	}
}

// TestPairsOfVersions meets pairs of schemas with patterns from real operators, and checks which
// documents the meet holds.
func TestPairsOfVersions(t *testing.T) {
	t.Parallel()
	pairs := readPairs(t)
	if len(pairs) < 40 {
		t.Errorf("there are %d pairs, want at least 40", len(pairs))
	}
	for _, p := range pairs {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			if p.East == nil || p.West == nil || len(p.Kept) == 0 || len(p.Refused) == 0 {
				t.Fatal("the pair says too little")
			}
			east, west := p.offer(t, "east", p.East), p.offer(t, "west", p.West)
			p.check(t, []*offeredSchema{east, west}, meetOf(t, east.Offer, west.Offer))
			p.check(t, []*offeredSchema{east, west}, meetOf(t, west.Offer, east.Offer))
		})
	}
}

func meetOf(t *testing.T, offers ...Offer) *offeredSchema {
	t.Helper()
	agreement, why := Meet(offers...)
	if agreement == nil {
		t.Fatalf("there is no meet: %v", why)
	}
	served(t, "the meet", propsOf(t, &agreement.Spec))
	t.Logf("dropped: %v", agreement.Dropped)
	return mustRead(t, Offer{Location: "the meet", Spec: agreement.Spec})[0]
}

func (p *pair) check(t *testing.T, members []*offeredSchema, meet *offeredSchema) {
	t.Helper()
	all := append([]*offeredSchema{meet}, members...)
	for _, content := range p.Kept {
		doc := p.document(content)
		for _, o := range all {
			if err := o.ask().holds(doc); err != nil {
				t.Errorf("%s does not hold %s: %v\n%s", o.Location, encode(doc), err, o.Spec.OpenAPIV3Schema.Raw)
			}
		}
	}
	for _, content := range p.Refused {
		doc := p.document(content)
		if members[0].ask().holds(doc) == nil && members[1].ask().holds(doc) == nil {
			t.Errorf("both hold %s", encode(doc))
		}
		if meet.ask().holds(doc) == nil {
			t.Errorf("the meet holds %s\n%s", encode(doc), meet.Spec.OpenAPIV3Schema.Raw)
		}
	}
	for _, c := range p.Changes {
		from, to := p.document(c.From), p.document(c.To)
		allowed := members[0].ask().follows(from, to) == nil && members[1].ask().follows(from, to) == nil
		if allowed != c.Allowed {
			t.Errorf("that members allow the change from %s to %s is %v", encode(from), encode(to), allowed)
		}
		if err := meet.ask().follows(from, to); (err == nil) != c.Allowed {
			t.Errorf("the change from %s to %s: %v, want allowed %v", encode(from), encode(to), err, c.Allowed)
		}
	}
}

// follows returns why a valid document cannot replace another one, or nil.
func (j *checker) follows(old, doc map[string]any) error {
	old, doc = runtime.DeepCopyJSON(old), runtime.DeepCopyJSON(doc)
	j.fill(old)
	j.fill(doc)
	if j.rules == nil {
		return nil
	}
	broken, _ := j.rules.Validate(context.Background(), nil, j.structural, doc, old, celconfig.RuntimeCELCostBudget)
	return broken.ToAggregate()
}
