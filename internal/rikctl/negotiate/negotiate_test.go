package negotiate

import (
	"bytes"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/negotiation/plan"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/testkit/golden"
)

func TestNegotiatePlanGolden(t *testing.T) {
	t.Parallel()
	key := schema.GroupResource{Group: "example.org", Resource: "widgets"}
	founded := map[string]time.Time{"us-east1": rikctltest.At(0).Time, "us-west1": rikctltest.At(1).Time, "eu-north1": rikctltest.At(2).Time}
	rich := rikctltest.WidgetImport("us-east1", `{"color":{"type":"string"},"size":{"type":"integer"},"parts":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"}}}}}`, "color")
	poor := rikctltest.WidgetImport("us-west1", `{"color":{"type":"string","maxLength":12},"parts":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"}}}}}`, "color")
	other := rikctltest.WidgetImport("eu-north1", `{"color":{"type":"integer"}}`, "color")
	hostile := rikctltest.WidgetImport("eu-north1", `{"color":{"type":"string"},"size\u001b[31m":{"type":"string"}}`, "color")
	broken := rikctltest.WidgetImport("eu-north1", `{}`)
	broken.Spec.OpenAPIV3Schema.Raw = []byte(`[]`)
	enforcing := &apiresourcev1alpha1.NegotiatedAPIResource{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.v1.example.org", Annotations: map[string]string{
			apiresourcev1alpha1.EnforcedByAnnotation: apiresourcev1alpha1.EnforcedByServer}},
		Spec: apiresourcev1alpha1.NegotiatedAPIResourceSpec{CommonAPIResourceSpec: rich.Spec.CommonAPIResourceSpec, Publish: true}}
	imports := func(all ...*apiresourcev1alpha1.APIResourceImport) []*apiresourcev1alpha1.APIResourceImport {
		return all
	}
	for name, state := range map[string]plan.State{
		"negotiate-one":      {Imports: imports(rich)},
		"negotiate-narrowed": {Imports: imports(rich, poor)},
		"negotiate-in-way":   {Imports: imports(other, poor, rich)},
		"negotiate-broken":   {Imports: imports(broken, rich)},
		"negotiate-nothing":  {Imports: imports(broken)},
		"negotiate-enforced": {Imports: imports(poor), Negotiated: []*apiresourcev1alpha1.NegotiatedAPIResource{enforcing},
			Native: []apiresourcev1alpha1.CommonAPIResourceSpec{enforcing.Spec.CommonAPIResourceSpec}},
		"negotiate-hostile": {Imports: imports(rich, hostile)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state.Resource, state.Founded = key, founded
			p, err := plan.Preview(state)
			if err != nil {
				t.Fatal(err)
			}
			sameExamples(p)
			var out bytes.Buffer
			if err := printNegotiation(&out, &state, p); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(out.String(), "\x1b") {
				t.Errorf("what a cluster says reaches the terminal: %q", out.String())
			}
			golden.Compare(t, name+".golden", out.Bytes())
		})
	}
}

// sameExamples replaces each example document by a fixed one, because package schema may choose
// any example.
func sameExamples(p *plan.Plan) {
	for i := range p.Versions {
		for j := range p.Versions[i].ImportResults {
			status := &p.Versions[i].ImportResults[j].Status
			for _, all := range [][]apiresourcev1alpha1.Obstacle{status.Obstacles, status.Dropped} {
				for k := range all {
					if all[k].CounterExample != "" {
						all[k].CounterExample = `{"spec":{"color":"red"}}`
					}
				}
			}
		}
	}
}
