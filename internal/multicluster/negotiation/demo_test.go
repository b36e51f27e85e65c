package negotiation_test

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/served"
)

var (
	deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}
	widgets     = schema.GroupResource{Group: "example.org", Resource: "widgets"}
)

const (
	full, older  = "deployments-full.yaml", "deployments-older.yaml"
	wide, narrow = "widgets-wide.yaml", "widgets-narrow.yaml"

	updatePublished = `{"spec":{"schemaUpdateStrategy":"UpdatePublished"}}`
	publish         = `{"spec":{"publish":true}}`
)

// TestDemoNegotiation runs the first part of the public demo, with the output of kubectl at each
// step.
func TestDemoNegotiation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serves(t, deployments)

	east := s.offer(t, "us-east1", older)
	s.create(t, east)
	s.shows(t, "deployments.apps", "import us-east1 v1 True/", "negotiated v1 publish=false /")
	s.serves(t, deployments)

	s.patch(t, s.named("deployments.v1.apps"), publish)
	s.shows(t, "deployments.apps", "import us-east1 v1 True/True", "negotiated v1 publish=true True/False")
	s.serves(t, deployments, "v1")
	crd, err := s.crd(t.Context(), "deployments.apps")
	if err != nil {
		t.Fatal(err)
	}
	if owner := crd.OwnerReferences[0]; owner.Kind != "NegotiatedAPIResource" || owner.Name != "deployments.v1.apps" {
		t.Errorf("owner of the CRD = %+v, want the negotiated resource", owner)
	}

	west := s.offer(t, "us-west1", full)
	s.create(t, west)
	s.shows(t, "deployments.apps", "import us-east1 v1 True/True", "import us-west1 v1 True/True", "negotiated v1 publish=true True/False")

	s.patch(t, west, updatePublished)
	s.shows(t, "deployments.apps", "import us-east1 v1 True/True", "import us-west1 v1 True/True", "negotiated v1 publish=true True/False")
	s.negotiates(t, "deployments.v1.apps", "replicas", "selector", "strategy", "template")

	s.delete(t, west)
	s.shows(t, "deployments.apps", "import us-east1 v1 True/True", "negotiated v1 publish=true True/False")
	s.delete(t, east)
	s.shows(t, "deployments.apps")
	s.serves(t, deployments)
}

// TestDemoEnforced runs the second part of the demo. In the prototype, an incompatible import was
// AVAILABLE True. Here it is not.
func TestDemoEnforced(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.create(t, s.definition(t, full))
	s.serves(t, deployments, "v1")

	west := s.offer(t, "us-west1", older)
	s.create(t, west)
	s.shows(t, "deployments.apps", "import us-west1 v1 False(IncompatibleSchema)/", "negotiated v1 publish=true True/True")
	poll.Until(t, served.Timeout, "the import says what stands in the way", func(ctx context.Context) error {
		i := &apiresourcev1alpha1.APIResourceImport{}
		if err := s.c.Get(ctx, keyOf(west), i); err != nil {
			return err
		}
		for _, o := range i.Status.Obstacles {
			if o.Path == ".spec.paused" && len(o.Locations) == 1 && o.Locations[0] == "us-west1" {
				return nil
			}
		}
		return fmt.Errorf("obstacles are %+v", i.Status.Obstacles)
	})

	s.patch(t, west, updatePublished)
	east := s.offer(t, "us-east1", older)
	s.create(t, east)
	s.shows(t, "deployments.apps", "import us-east1 v1 False(IncompatibleSchema)/", "import us-west1 v1 False(IncompatibleSchema)/",
		"negotiated v1 publish=true True/True")
	s.negotiates(t, "deployments.v1.apps", "minReadySeconds", "paused", "replicas", "selector", "strategy", "template")

	// The CRD is deleted, and the imports determine the schema again.
	s.delete(t, s.definition(t, full))
	s.shows(t, "deployments.apps", "import us-east1 v1 True/", "import us-west1 v1 True/", "negotiated v1 publish=false /")
	s.negotiates(t, "deployments.v1.apps", "replicas", "selector", "strategy", "template")
	s.serves(t, deployments)
}

// TestImportsLeave removes imports on a real kcp.
func TestImportsLeave(t *testing.T) {
	t.Parallel()
	s := publishing(t)
	a, b := s.offer(t, "a", narrow), s.offer(t, "b", wide)
	s.create(t, a)
	s.shows(t, "widgets.example.org", "import a v1 True/True", "negotiated v1 publish=true True/False")
	s.create(t, b)
	s.shows(t, "widgets.example.org", "import a v1 True/True", "import b v1 True/True", "negotiated v1 publish=true True/False")
	s.negotiates(t, "widgets.v1.example.org", "color")
	s.delete(t, a)
	s.negotiates(t, "widgets.v1.example.org", "color", "size")
	one := s.store(t, `{apiVersion: example.org/v1, kind: Widget, metadata: {name: one, namespace: default}, spec: {size: 7}}`)
	if got := fmt.Sprint(s.read(t, one)); got != "map[size:7]" {
		t.Errorf("the object is %s: the wider schema is not served", got)
	}
	s.delete(t, b)
	s.shows(t, "widgets.example.org", "negotiated v1 publish=true True/False InUse=True")
	s.delete(t, one)
	s.shows(t, "widgets.example.org")
	s.serves(t, widgets)
}

// TestVersions imports several versions of a type.
func TestVersions(t *testing.T) {
	t.Parallel()
	s := publishing(t)
	beta := version(s.offer(t, "a", narrow), "v1beta1")
	s.create(t, beta)
	s.serves(t, widgets, "v1beta1")
	v1 := s.offer(t, "a", narrow)
	s.create(t, v1)
	s.serves(t, widgets, "v1", "v1beta1")
	s.shows(t, "widgets.example.org", "import a v1 True/True", "import a v1beta1 True/True",
		"negotiated v1 publish=true True/False", "negotiated v1beta1 publish=true True/False")
	crd, err := s.crd(t.Context(), "widgets.example.org")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range crd.Spec.Versions {
		if v.Storage != (v.Name == "v1") {
			t.Errorf("version %s is stored: %v", v.Name, v.Storage)
		}
	}
	one := s.store(t, `{apiVersion: example.org/v1, kind: Widget, metadata: {name: one, namespace: default}, spec: {color: red}}`)
	s.delete(t, v1)
	s.shows(t, "widgets.example.org", "import a v1beta1 True/True",
		"negotiated v1 publish=true True/False InUse=True", "negotiated v1beta1 publish=true True/False")
	s.delete(t, one)
	s.shows(t, "widgets.example.org", "import a v1beta1 True/True", "negotiated v1beta1 publish=true True/False")
	s.serves(t, widgets, "v1beta1")
}
