package rikctl

import (
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/rikctl/scheme"
	"rik.dev/rik/internal/testkit/kcptest"
)

func TestNegotiatePlanUsage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run(t, "api", "negotiate").check(t, clierror.ExitUsage, "--plan")
	m.run(t, "api", "negotiate", "--plan", "-o", "json").check(t, clierror.ExitUsage, "use yaml")
	m.run(t, "api", "negotiate", "--plan", "a", "b").check(t, clierror.ExitUsage)
	m.run(t, "api", "negotiated").check(t, clierror.ExitUsage, "did you mean negotiate")
}

// TestServerNegotiateOnACluster checks the error of a cluster, which does not negotiate types.
func TestServerNegotiateOnACluster(t *testing.T) {
	t.Parallel()
	newSite(t).do(t, "api", "negotiate", "--plan").check(t, clierror.ExitNotFound, "does not have the types", "only a kcp has these types")
}

// TestServerNegotiatePlan plans against a real kcp and changes nothing in it.
func TestServerNegotiatePlan(t *testing.T) {
	t.Parallel()
	upstream := sharedKCP(t)
	c, err := client.New(kcptest.LoopbackConfig(upstream), client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	m.env["RIKCONFIG"] = filepath.Join(upstream.DataDir, "config.yaml")
	m.run(t, "api", "negotiate", "--plan").check(t, clierror.ExitOK, "No cluster offers a type")
	for _, i := range []*apiresourcev1alpha1.APIResourceImport{
		rikctltest.WidgetImport("us-east1", `{"color":{"type":"string"},"size":{"type":"integer"}}`, "color"),
		rikctltest.WidgetImport("us-west1", `{"color":{"type":"string"}}`, "color"),
		rikctltest.WidgetImport("eu-north1", `{"color":{"type":"integer"}}`, "color"),
	} {
		if err := c.Create(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	for _, word := range []string{"widgets", "widgets.example.org"} {
		m.run(t, "api", "negotiate", "--plan", word).check(t, clierror.ExitOK,
			"creates CRD widgets.example.org with v1 (stored)", "Incompatible", ".spec.color", "Compatible:", `for example {"apiVersion"`)
	}
	m.run(t, "api", "negotiate", "--plan", "-o", "yaml").check(t, clierror.ExitOK, "kind: NegotiatedAPIResource", "kind: CustomResourceDefinition", "openAPIV3Schema")
	m.run(t, "api", "negotiate", "--plan", "gadgets").check(t, clierror.ExitNotFound, "gadgets not found", "api negotiate --plan")
	m.run(t, "__complete", "api", "negotiate", "--plan", "").check(t, clierror.ExitOK, "widgets.example.org")
	var negotiated apiresourcev1alpha1.NegotiatedAPIResourceList
	if err := c.List(t.Context(), &negotiated); err != nil || len(negotiated.Items) != 0 {
		t.Errorf("showing a plan negotiated %v, %v", negotiated.Items, err)
	}
}
