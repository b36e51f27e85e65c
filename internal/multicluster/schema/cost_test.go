package schema

import (
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// TestRulesOfExamplesAreBounded tests that the search for examples has a bounded cost, for any
// rules of a type and any number of obstacles.
func TestRulesOfExamplesAreBounded(t *testing.T) {
	t.Parallel()
	offer := func(location string) *offeredSchema {
		o, err := readOffer(Offer{Location: location, Spec: apiresourcev1alpha1.CommonAPIResourceSpec{
			GroupVersion: apiresourcev1alpha1.GroupVersion{Group: "example.org", Version: "v1"},
			Names:        apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			OpenAPIV3Schema: runtime.RawExtension{Raw: []byte(`{"type":"object","required":["spec"],"properties":{"spec":{"type":"object","required":["text"],
				"properties":{"text":{"type":"string","minLength":20,"maxLength":60}},
				"x-kubernetes-validations":[{"rule":"[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, self.text.size() + a + b + c + d > 0))))"}]}}}`)},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	east, west := offer("east"), offer("west")
	var obstacles []apiresourcev1alpha1.Obstacle
	for i := range 400 {
		obstacles = append(obstacles, apiresourcev1alpha1.Obstacle{Path: fmt.Sprintf(".spec.nothing%d", i)})
	}
	addExamples(obstacles, [][2]*offeredSchema{{east, west}})
	spent := east.ask().spent + west.ask().spent
	if spent == 0 || spent > maxRuleCost+3*celconfig.RuntimeCELCostBudget {
		t.Errorf("the rules of the examples cost %d, want at most %d and what is above for one document", spent, maxRuleCost)
	}
	t.Logf("they cost %d", spent)
}
