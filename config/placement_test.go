package config

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// validate is what an API server does with a document of a type in config.
func validate(t *testing.T, name string) func(document map[string]any) (field.ErrorList, []string) {
	t.Helper()
	crds, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		if crd.Name != name {
			continue
		}
		internal := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, internal, nil); err != nil {
			t.Fatal(err)
		}
		structural, err := structuralschema.NewStructural(internal)
		if err != nil {
			t.Fatal(err)
		}
		validator, _, err := validation.NewSchemaValidator(internal)
		if err != nil {
			t.Fatal(err)
		}
		rules := cel.NewValidator(structural, true, celconfig.PerCallLimit)
		return func(document map[string]any) (field.ErrorList, []string) {
			unknown := pruning.PruneWithOptions(document, structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
			errs := validation.ValidateCustomResource(nil, document, validator)
			broken, _ := rules.Validate(t.Context(), nil, structural, document, nil, celconfig.RuntimeCELCostBudget)
			return append(errs, broken...), unknown
		}
	}
	t.Fatalf("no CRD %s", name)
	return nil
}

// TestPlacement validates the same documents with the schema and with the Go code.
func TestPlacement(t *testing.T) {
	t.Parallel()
	server := validate(t, "placements.workload.kcp.dev")
	for name, tc := range map[string]struct {
		policy string
		// bad is the field that both have to name; empty: the policy is good.
		bad string
	}{
		"nothing":                      {policy: `{}`},
		"everything":                   {policy: `{divide: replicas, strategy: spread, topologyKey: region, weights: [{cluster: a, weight: 3}], clusters: {matchLabels: {a: b}}, notClusters: {matchExpressions: [{key: x, operator: Exists}]}, tolerations: [{key: gpu, operator: Exists}, {key: a, value: b, effect: NoExecute}], maxSurge: 25%, maxMoves: {count: 5, interval: 10m}, gracePeriod: 1m30s, fenceAfter: 30s}`},
		"surge as a number":            {policy: `{maxSurge: 0}`},
		"surge below none":             {policy: `{maxSurge: -1}`, bad: "maxSurge"},
		"surge without percent":        {policy: `{maxSurge: "5"}`, bad: "maxSurge"},
		"surge above all":              {policy: `{maxSurge: 101%}`, bad: "maxSurge"},
		"unknown strategy":             {policy: `{strategy: random}`, bad: "strategy"},
		"unknown division":             {policy: `{divide: half}`, bad: "divide"},
		"spread over nothing":          {policy: `{strategy: spread}`, bad: "topologyKey"},
		"a key without spread":         {policy: `{topologyKey: region}`, bad: "topologyKey"},
		"weighted without weights":     {policy: `{strategy: weighted}`, bad: "weights"},
		"weights without weighted":     {policy: `{weights: [{cluster: a, weight: 3}]}`, bad: "weights"},
		"negative weight":              {policy: `{strategy: weighted, weights: [{cluster: a, weight: -3}]}`, bad: "weight"},
		"no moves":                     {policy: `{maxMoves: {count: 0}}`, bad: "count"},
		"short fence":                  {policy: `{fenceAfter: 9s}`, bad: "fenceAfter"},
		"toleration of nothing":        {policy: `{tolerations: [{value: a}]}`, bad: "tolerations"},
		"a value where none is read":   {policy: `{tolerations: [{key: a, operator: Exists, value: b}]}`, bad: "tolerations"},
		"unknown effect":               {policy: `{tolerations: [{key: a, operator: Exists, effect: PreferNoSchedule}]}`, bad: "effect"},
		"unknown toleration operator":  {policy: `{tolerations: [{key: a, operator: Lt}]}`, bad: "operator"},
		"too many moves":               {policy: `{maxMoves: {count: 1000001}}`, bad: "count"},
		"weight of the same, repeated": {policy: `{strategy: weighted, weights: [{cluster: a, weight: 0}, {cluster: b, weight: 1000000}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			var spec map[string]any
			if err := yaml.Unmarshal([]byte(tc.policy), &spec); err != nil {
				t.Fatal(err)
			}
			var policy workloadv1alpha1.PlacementPolicy
			if err := yaml.UnmarshalStrict([]byte(tc.policy), &policy); err != nil {
				t.Fatal(err)
			}
			spec["selector"] = map[string]any{}
			byServer, unknown := server(document(t, spec))
			byCode := policy.Validate(field.NewPath("spec"))
			if len(unknown) > 0 {
				t.Errorf("the schema does not know %v", unknown)
			}
			if (len(byServer) > 0) != (tc.bad != "") || (len(byCode) > 0) != (tc.bad != "") {
				t.Errorf("the schema says %v, the code %v; want errors: %v", byServer, byCode, tc.bad != "")
			}
			if tc.bad != "" && (!names(byServer, tc.bad) || !names(byCode, tc.bad)) {
				t.Errorf("the schema says %v, the code %v; want %s named by both", byServer, byCode, tc.bad)
			}
		})
	}
}

// document is a Placement as an API server decodes it, with numbers as it has them.
func document(t *testing.T, spec map[string]any) map[string]any {
	t.Helper()
	data, err := json.Marshal(map[string]any{"apiVersion": "workload.kcp.dev/v1alpha1", "kind": "Placement", "metadata": map[string]any{"name": "a"}, "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := utiljson.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPlacementTargets(t *testing.T) {
	t.Parallel()
	server := validate(t, "placements.workload.kcp.dev")
	target := map[string]any{"group": "apps", "kind": "Deployment", "name": "web"}
	for name, tc := range map[string]struct {
		spec map[string]any
		ok   bool
	}{
		"target":                             {map[string]any{"targetRef": target}, true},
		"selector":                           {map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"a": "b"}}}, true},
		"both":                               {map[string]any{"targetRef": target, "selector": map[string]any{}}, false},
		"neither":                            {map[string]any{}, false},
		"a grace period that cannot be read": {map[string]any{"selector": map[string]any{}, "gracePeriod": "99999999999999h"}, false},
		"an interval that cannot be read":    {map[string]any{"selector": map[string]any{}, "maxMoves": map[string]any{"count": 1, "interval": "99999999999999h"}}, false},
		"a fence that cannot be read":        {map[string]any{"selector": map[string]any{}, "fenceAfter": "99999999999999h"}, false},
		"no kind":                            {map[string]any{"targetRef": map[string]any{"name": "web"}}, false},
	} {
		if errs, _ := server(document(t, tc.spec)); (len(errs) == 0) != tc.ok {
			t.Errorf("%s: %v, want ok: %v", name, errs, tc.ok)
		}
	}
}

// names says whether an error is about a field.
func names(errs field.ErrorList, part string) bool {
	for _, err := range errs {
		if strings.Contains(err.Error(), part) {
			return true
		}
	}
	return false
}
