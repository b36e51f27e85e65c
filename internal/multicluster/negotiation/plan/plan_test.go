package plan

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

const (
	published  = "Submitted=True Published=True Enforced=False"
	good       = "Compatible=True Available=True"
	compatOnly = "Compatible=True"
	bad        = "Compatible=False(IncompatibleSchema)"
)

// TestStrategyMatrix adds an import that lacks a field to one that has it, with each strategy.
func TestStrategyMatrix(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		strategy apiresourcev1alpha1.SchemaUpdateStrategy
		phase    string
		narrows  bool
	}{
		{apiresourcev1alpha1.UpdateNever, "unpublished", false},
		{apiresourcev1alpha1.UpdateNever, "published", false},
		{apiresourcev1alpha1.UpdateNever, "enforced", false},
		{apiresourcev1alpha1.UpdateUnpublished, "unpublished", true},
		{apiresourcev1alpha1.UpdateUnpublished, "published", false},
		{apiresourcev1alpha1.UpdateUnpublished, "enforced", false},
		{apiresourcev1alpha1.UpdatePublished, "unpublished", true},
		{apiresourcev1alpha1.UpdatePublished, "published", true},
		{apiresourcev1alpha1.UpdatePublished, "enforced", false},
	} {
		t.Run(fmt.Sprintf("%s %s", tc.strategy, tc.phase), func(t *testing.T) {
			t.Parallel()
			w := newSimulation(t)
			w.state.AutoPublish = tc.phase == "published"
			if tc.phase == "enforced" {
				w.state.CRD = byHand(t, widget("", aAndB))
			}
			w.offer(widget("a", aAndB))
			w.settle()
			w.offer(strategy(widget("b", onlyA), tc.strategy))
			w.settle()
			want := []string{"a", "b"}
			if tc.narrows {
				want = want[:1]
			}
			w.checkFields("v1", want...)
			for _, i := range w.state.Imports {
				ok := isTrue(i.Status.Conditions, apiresourcev1alpha1.ConditionCompatible)
				if wantOK := i.Spec.Location == "a" || tc.narrows; ok != wantOK {
					t.Errorf("import of %s is compatible: %v, want %v: %s", i.Spec.Location, ok, wantOK, conditionsOf(i.Status.Conditions))
				}
				if !ok && len(i.Status.Obstacles) == 0 {
					t.Errorf("nothing says what stands in the way of %s", i.Spec.Location)
				}
			}
		})
	}
}

func TestDroppedNamesTheCluster(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.offer(widget("a", aAndB))
	w.offer(widget("b", onlyA))
	w.settle()
	w.checkFields("v1", "a")
	_, statuses := agreed(w, "v1")
	lacking := statuses["widgets.b.v1.example.org"]
	if len(lacking.Dropped) != 1 || lacking.Dropped[0].Path != ".spec.b" || strings.Join(lacking.Dropped[0].Locations, ",") != "b" {
		t.Errorf("dropped because of b = %+v, want .spec.b of b", lacking.Dropped)
	}
	if has := statuses["widgets.a.v1.example.org"]; len(has.Dropped) != 0 {
		t.Errorf("dropped because of a = %+v, which has the field", has.Dropped)
	}
}

// TestOlderClusterIsAdmittedFirst tests two imports that cannot agree. The one of the older
// Cluster stays, in either order of creation. Without Clusters, the first by name stays.
func TestOlderClusterIsAdmittedFirst(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		founded map[string]time.Time
		want    string
	}{
		"by name":                   {nil, "a"},
		"b is older":                {map[string]time.Time{"a": now, "b": now.Add(-time.Hour)}, "b"},
		"as old":                    {map[string]time.Time{"a": now, "b": now}, "a"},
		"only b has a Cluster":      {map[string]time.Time{"b": now}, "b"},
		"only a has a Cluster":      {map[string]time.Time{"a": now}, "a"},
		"a is older and comes late": {map[string]time.Time{"a": now.Add(-time.Hour), "b": now}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSimulation(t)
			w.state.Founded = tc.founded
			w.offer(widgetOf("b", "v1", onlyA, "a"))
			w.settle()
			w.offer(widgetOf("a", "v1", aIsInt, "a"))
			w.settle()
			for _, i := range w.state.Imports {
				if ok := isTrue(i.Status.Conditions, apiresourcev1alpha1.ConditionCompatible); ok != (i.Spec.Location == tc.want) {
					t.Errorf("import of %s is compatible: %v, want only %s to be", i.Spec.Location, ok, tc.want)
				}
			}
		})
	}
}

func TestPublishing(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.offer(widget("a", onlyA))
	w.settle()
	w.check("v1", "", "a: "+compatOnly)
	w.checkServed()
	w.publish("v1", true)
	w.settle()
	w.check("v1", published, "a: "+good)
	w.checkServed("v1*")
	// An incompatible import is not available. This deviates from the prototype.
	w.offer(widget("b", onlyB))
	w.settle()
	w.check("v1", published, "a: "+good, "b: "+bad)
	owners := w.state.CRD.OwnerReferences
	if len(owners) != 2 || owners[0].UID != w.negotiated("v1").UID || owners[1].UID != "anchor" {
		t.Errorf("owners of the CRD = %+v, want the negotiated resource and the anchor", owners)
	}
}

func TestInvalidImportTakesNoPart(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	broken := widget("a", onlyA)
	broken.Spec.OpenAPIV3Schema.Raw = []byte(`{"type":["object"]}`)
	w.offer(broken)
	w.settle()
	if len(w.state.Negotiated) != 0 {
		t.Errorf("negotiated from an unreadable schema: %+v", w.state.Negotiated)
	}
	w.offer(widget("b", onlyB))
	w.settle()
	w.check("v1", "", "a: Compatible=False(InvalidSchema)", "b: "+compatOnly)
}

// TestManuallyEnforced runs the second part of the demo without a server.
func TestManuallyEnforced(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.state.CRD = byHand(t, widget("", aAndB))
	w.offer(strategy(widget("a", onlyA), apiresourcev1alpha1.UpdatePublished))
	w.offer(widget("b", aAndB))
	p := w.settle()
	const enforced = "Submitted=True Published=True Enforced=True"
	w.check("v1", enforced, "a: "+bad, "b: "+good)
	if !w.negotiated("v1").Spec.Publish || p.CRD.Action != CRDKeep {
		t.Errorf("publish = %v, CRD = %q, want true and nothing", w.negotiated("v1").Spec.Publish, p.CRD.Action)
	}
	w.state.CRD = nil
	w.settle()
	w.check("v1", "", "a: "+compatOnly, "b: "+compatOnly)
	w.checkFields("v1", "a")
	if w.negotiated("v1").Spec.Publish {
		t.Error("publish is true after the CRD that set it is gone")
	}
	w.checkServed()
	w.state.CRD = byHand(t, widget("", aAndB))
	w.settle()
	w.withdraw("a", "v1")
	w.withdraw("b", "v1")
	w.settle()
	if len(w.state.Negotiated) != 0 || w.state.CRD == nil {
		t.Errorf("after the last import: negotiated %v, CRD %v; want only the CRD that was made by hand", w.state.Negotiated, w.state.CRD)
	}
}

func TestManualCRDWithoutTheVersion(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.state.CRD = byHand(t, widget("", onlyA))
	w.offer(widgetOf("a", "v2", onlyA))
	w.settle()
	w.publish("v2", true)
	w.settle()
	w.check("v2", "Submitted=False(NameConflict) Published=False(NameConflict) Enforced=False", "a: Compatible=True Available=False(NameConflict)")
}

func TestNativeTypeIsEnforced(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.state.Native = []apiresourcev1alpha1.CommonAPIResourceSpec{widget("", onlyA).Spec.CommonAPIResourceSpec}
	w.offer(strategy(widget("a", aAndB), apiresourcev1alpha1.UpdatePublished))
	w.offer(widget("b", onlyB))
	p := w.settle()
	w.check("v1", "Submitted=True Published=True Enforced=True", "a: "+good, "b: "+bad)
	if p.CRD.Action != CRDKeep {
		t.Errorf("a type that is served natively gets a CRD: %s", p.CRD.Action)
	}
}

// TestImportsLeave removes imports.
func TestImportsLeave(t *testing.T) {
	t.Parallel()
	t.Run("unpublished", func(t *testing.T) {
		t.Parallel()
		w := newSimulation(t)
		w.offer(widget("a", aAndB))
		w.offer(widget("b", onlyA))
		w.settle()
		w.checkFields("v1", "a")
		w.withdraw("b", "v1")
		w.settle()
		w.checkFields("v1", "a", "b")
		w.withdraw("a", "v1")
		w.settle()
		if len(w.state.Negotiated) != 0 {
			t.Errorf("negotiated without imports: %+v", w.state.Negotiated)
		}
	})
	t.Run("published", func(t *testing.T) {
		t.Parallel()
		w := newSimulation(t)
		w.offer(widget("a", aAndB))
		w.offer(widget("b", onlyA))
		w.settle()
		w.publish("v1", true)
		w.settle()
		w.store("one", map[string]any{"a": "x"})
		w.withdraw("b", "v1")
		w.settle()
		w.checkFields("v1", "a", "b")
		w.checkServed("v1*")
		w.objects = nil
		w.withdraw("a", "v1")
		w.settle()
		if len(w.state.Negotiated) != 0 || w.state.CRD != nil {
			t.Errorf("after the last import: negotiated %v, CRD %v", w.state.Negotiated, w.state.CRD)
		}
	})
}

// TestOneThatLeftIsReplacedOnlyIfObjectsFit tests a cluster that left. The meet of the remaining
// ones is narrower than what is served.
func TestOneThatLeftIsReplacedOnlyIfObjectsFit(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.state.AutoPublish = true
	w.offer(widget("a", aAndB))
	w.settle()
	w.offer(widget("b", onlyA))
	w.settle()
	w.store("one", map[string]any{"b": "x"})
	w.withdraw("a", "v1")
	p := w.settle()
	w.checkFields("v1", "a", "b")
	w.check("v1", published, "b: "+bad)
	if !p.Recheck {
		t.Error("nothing looks again whether the stored objects have changed")
	}
	w.objects = nil
	w.settle()
	w.checkFields("v1", "a")
	w.check("v1", published, "b: "+good)
}

// TestInUse tests that a type without imports stays as long as objects are stored.
func TestInUse(t *testing.T) {
	t.Parallel()
	const kept = published + " InUse=True"
	setUp := func(t *testing.T) *simulation {
		w := newSimulation(t)
		w.state.AutoPublish = true
		w.offer(widget("a", onlyA))
		w.settle()
		w.store("one", map[string]any{"a": "x"})
		return w
	}
	gone := func(t *testing.T, w *simulation) {
		t.Helper()
		w.objects = nil
		w.settle()
		if w.state.CRD != nil {
			t.Errorf("the CRD is kept for nothing: %v", w.served())
		}
	}
	t.Run("last import leaves", func(t *testing.T) {
		t.Parallel()
		w := setUp(t)
		w.withdraw("a", "v1")
		p := w.settle()
		w.check("v1", kept)
		w.checkServed("v1*")
		if !p.Recheck {
			t.Error("nothing looks again whether the objects are gone")
		}
		gone(t, w)
	})
	t.Run("and comes back", func(t *testing.T) {
		t.Parallel()
		w := setUp(t)
		w.withdraw("a", "v1")
		w.settle()
		w.offer(widget("a", onlyA))
		w.settle()
		w.check("v1", published, "a: "+good)
	})
	t.Run("negotiated resource deleted", func(t *testing.T) {
		t.Parallel()
		w := setUp(t)
		w.negotiated("v1").DeletionTimestamp = new(metav1.Now())
		// As the garbage collector does in a foreground deletion.
		w.state.CRD.OwnerReferences = w.state.CRD.OwnerReferences[1:]
		w.settle()
		w.check("v1", kept, "a: Compatible=True Available=False(InUse)")
		w.checkServed("v1*")
		if owners := w.state.CRD.OwnerReferences; len(owners) != 1 || owners[0].UID != "anchor" {
			t.Errorf("owners = %+v, want only the anchor", owners)
		}
	})
	t.Run("publish taken back", func(t *testing.T) {
		t.Parallel()
		w := setUp(t)
		w.publish("v1", false)
		w.settle()
		w.check("v1", kept, "a: Compatible=True Available=False(InUse)")
		gone(t, w)
		w.check("v1", "", "a: "+compatOnly)
	})
}

// TestPublishedNarrowsOnlyIfObjectsFit tests the strategy UpdatePublished.
func TestPublishedNarrowsOnlyIfObjectsFit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stored  map[string]any
		joins   *apiresourcev1alpha1.APIResourceImport
		narrows bool
		path    string
	}{
		"nothing stored":          {nil, widget("b", onlyA), true, ""},
		"fits":                    {map[string]any{"a": "x"}, widget("b", onlyA), true, ""},
		"would lose a field":      {map[string]any{"a": "x", "b": "y"}, widget("b", onlyA), false, ".spec.b"},
		"would not be valid":      {map[string]any{"a": "confidential"}, widget("b", `{"a":{"type":"string","maxLength":3},"b":{"type":"string"}}`), false, ".spec.a"},
		"would lack one":          {map[string]any{"b": "y"}, widgetOf("b", "v1", aAndB, "a"), false, ".spec.a"},
		"would break a rule":      {map[string]any{"a": "no"}, widget("b", `{"a":{"type":"string","x-kubernetes-validations":[{"rule":"self == 'yes'"}]},"b":{"type":"string"}}`), false, ".spec.a"},
		"keeps to the same rules": {map[string]any{"a": "yes"}, widget("b", `{"a":{"type":"string","x-kubernetes-validations":[{"rule":"self == 'yes'"}]},"b":{"type":"string"}}`), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSimulation(t)
			w.state.AutoPublish = true
			w.offer(widget("a", aAndB))
			w.settle()
			if tc.stored != nil {
				w.store("one", tc.stored)
			}
			before := w.negotiated("v1").Spec
			w.offer(strategy(tc.joins, apiresourcev1alpha1.UpdatePublished))
			w.settle()
			_, statuses := agreed(w, "v1")
			status := statuses["widgets.b.v1.example.org"]
			if ok := isTrue(status.Conditions, apiresourcev1alpha1.ConditionCompatible); ok != tc.narrows {
				t.Errorf("compatible: %v, want %v: %+v", ok, tc.narrows, status)
			}
			if changed := !equal(&before.CommonAPIResourceSpec, &w.negotiated("v1").Spec.CommonAPIResourceSpec); changed != tc.narrows {
				t.Errorf("the schema changed: %v, want %v", changed, tc.narrows)
			}
			if tc.narrows {
				return
			}
			first := status.Obstacles[0]
			if first.Path != tc.path || !strings.Contains(first.Reason, `"one" in namespace "shop"`) || first.Locations[0] != "b" {
				t.Errorf("the first obstacle is %+v, want %s of the object and the cluster", first, tc.path)
			}
			for _, secret := range tc.stored {
				if text := fmt.Sprint(first); len(secret.(string)) > 2 && strings.Contains(text, secret.(string)) {
					t.Errorf("the obstacle quotes the object: %s", text)
				}
			}
		})
	}
}

// TestDefaultsThatDifferAndStoredObjects tests that a field for which no default is accepted by
// all becomes required only if every stored object has it.
func TestDefaultsThatDifferAndStoredObjects(t *testing.T) {
	t.Parallel()
	const east, west = `{"a":{"type":"string","default":"x","enum":["x","z"]}}`, `{"a":{"type":"string","default":"y","enum":["y","z"]}}`
	for name, tc := range map[string]struct {
		strategy apiresourcev1alpha1.SchemaUpdateStrategy
		stored   map[string]any
		required bool
	}{
		"nothing is stored":         {apiresourcev1alpha1.UpdateUnpublished, nil, true},
		"the object has it":         {apiresourcev1alpha1.UpdateUnpublished, map[string]any{"a": "z"}, true},
		"the object lacks it":       {apiresourcev1alpha1.UpdateUnpublished, map[string]any{}, false},
		"all may change, has it":    {apiresourcev1alpha1.UpdatePublished, map[string]any{"a": "z"}, true},
		"all may change, lacks it":  {apiresourcev1alpha1.UpdatePublished, map[string]any{}, false},
		"all may change, none here": {apiresourcev1alpha1.UpdatePublished, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSimulation(t)
			w.state.AutoPublish = true
			w.offer(strategy(widget("a", `{"a":{"type":"string","enum":["x","y","z"]}}`), tc.strategy))
			w.settle()
			if tc.stored != nil {
				w.store("one", tc.stored)
			}
			w.offer(strategy(widget("b", east), apiresourcev1alpha1.UpdatePublished))
			w.offer(strategy(widget("c", west), apiresourcev1alpha1.UpdatePublished))
			w.settle()
			for _, i := range w.state.Imports {
				if !isTrue(i.Status.Conditions, apiresourcev1alpha1.ConditionCompatible) {
					t.Errorf("the import of %s: %+v", i.Spec.Location, i.Status)
				}
			}
			props := &apiextensionsv1.JSONSchemaProps{}
			if err := json.Unmarshal(w.negotiated("v1").Spec.OpenAPIV3Schema.Raw, props); err != nil {
				t.Fatal(err)
			}
			if required := len(props.Properties["spec"].Required) > 0; required != tc.required {
				t.Errorf("required: %v, want %v: %s", required, tc.required, w.negotiated("v1").Spec.OpenAPIV3Schema.Raw)
			}
		})
	}
}

// TestUpdatePublishedFollows tests that the schema follows the imports even to a wider schema if
// every import has the strategy UpdatePublished.
func TestUpdatePublishedFollows(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.state.AutoPublish = true
	w.offer(strategy(widget("a", onlyA), apiresourcev1alpha1.UpdatePublished))
	w.settle()
	w.offer(strategy(widget("a", aAndB), apiresourcev1alpha1.UpdatePublished))
	w.settle()
	w.checkFields("v1", "a", "b")
	w.offer(widget("a", `{"a":{"type":"string"},"b":{"type":"string"},"c":{"type":"string"}}`))
	w.settle()
	w.checkFields("v1", "a", "b")
}

// TestVersions imports several versions of a type.
func TestVersions(t *testing.T) {
	t.Parallel()
	t.Run("the highest is stored", func(t *testing.T) {
		t.Parallel()
		w := newSimulation(t)
		w.state.AutoPublish = true
		w.offer(widgetOf("a", "v1beta1", onlyA))
		w.settle()
		w.checkServed("v1beta1*")
		w.offer(widgetOf("a", "v1", aAndB))
		w.settle()
		w.checkServed("v1*", "v1beta1")
		w.check("v1", published, "a: "+good)
		w.check("v1beta1", published, "a: "+good)
		if n := len(w.state.CRD.OwnerReferences); n != 3 {
			t.Errorf("the CRD has %d owners, want one of each version and the anchor", n)
		}
	})
	t.Run("one goes when nothing is stored", func(t *testing.T) {
		t.Parallel()
		w := newSimulation(t)
		w.state.AutoPublish = true
		w.offer(widgetOf("a", "v1beta1", onlyA))
		w.offer(widgetOf("a", "v1", onlyA))
		w.settle()
		w.withdraw("a", "v1")
		w.settle()
		w.checkServed("v1beta1*")
		if got := w.state.CRD.Status.StoredVersions; len(got) != 1 || got[0] != "v1beta1" {
			t.Errorf("storedVersions = %v, want v1beta1", got)
		}
	})
	t.Run("one stays while it is stored", func(t *testing.T) {
		t.Parallel()
		w := newSimulation(t)
		w.state.AutoPublish = true
		w.offer(widgetOf("a", "v1beta1", onlyA))
		w.offer(widgetOf("a", "v1", onlyA))
		w.settle()
		w.store("one", map[string]any{"a": "x"})
		w.withdraw("a", "v1")
		w.settle()
		w.checkServed("v1*", "v1beta1")
		w.check("v1", published+" InUse=True")
		w.check("v1beta1", published, "a: "+good)
	})
	t.Run("one that was never stored goes", func(t *testing.T) {
		t.Parallel()
		w := newSimulation(t)
		w.state.AutoPublish = true
		w.offer(widgetOf("a", "v1", onlyA))
		w.settle()
		w.offer(widgetOf("a", "v1beta1", onlyA))
		w.settle()
		w.store("one", map[string]any{"a": "x"})
		w.withdraw("a", "v1beta1")
		w.settle()
		w.checkServed("v1*")
	})
	t.Run("a new one has to fit what is stored", func(t *testing.T) {
		t.Parallel()
		w := newSimulation(t)
		w.state.AutoPublish = true
		w.offer(widgetOf("a", "v1", aAndB))
		w.settle()
		w.store("one", map[string]any{"b": "x"})
		w.offer(widgetOf("a", "v2", onlyA))
		w.settle()
		w.checkServed("v1*")
		w.check("v2", "Submitted=False(InUse) Published=False(InUse) Enforced=False", "a: Compatible=True Available=False(InUse)")
	})
	t.Run("one CRD has one scope", func(t *testing.T) {
		t.Parallel()
		w := newSimulation(t)
		w.state.AutoPublish = true
		w.offer(widgetOf("a", "v1", onlyA))
		other := widgetOf("a", "v2", onlyA)
		other.Spec.Scope = "Cluster"
		w.settle()
		w.offer(other)
		w.settle()
		w.checkServed("v1*")
		w.check("v2", "Submitted=False(NameConflict) Published=False(NameConflict) Enforced=False", "a: Compatible=True Available=False(NameConflict)")
	})
}

func TestCoreTypesCannotBeServed(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.state.Resource, w.state.AutoPublish = schema.GroupResource{Resource: "widgets"}, true
	i := widget("a", onlyA)
	i.Spec.GroupVersion.Group = ""
	i.Name = apiresourcev1alpha1.ImportName(i.Spec.GVR(), "a")
	w.offer(i)
	w.settle()
	w.check("v1", "Submitted=False(NotServable) Published=False(NotServable) Enforced=False", "a: Compatible=True Available=False(NotServable)")
	if name := w.negotiated("v1").Name; name != "widgets.v1.core" {
		t.Errorf("name = %s, want widgets.v1.core", name)
	}
}

func TestRefusedCRD(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.offer(widget("a", onlyA))
	w.settle()
	w.publish("v1", true)
	w.state.Refused = "spec.versions[0]: it is bad"
	p := w.decide()
	got := conditionsOf(p.Versions[0].Want.Status.Conditions)
	if want := "Submitted=False(InvalidSchema) Published=False(InvalidSchema) Enforced=False"; got != want {
		t.Errorf("conditions = %q, want %q", got, want)
	}
	if message := p.Versions[0].Want.Status.Conditions[0].Message; !strings.Contains(message, w.state.Refused) {
		t.Errorf("message = %q, which does not quote the server", message)
	}
}

func TestKubernetesOwnGroupsAreApproved(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.state.Resource, w.state.AutoPublish = schema.GroupResource{Group: "networking.k8s.io", Resource: "widgets"}, true
	i := widget("a", onlyA)
	i.Spec.GroupVersion.Group = "networking.k8s.io"
	w.offer(i)
	w.settle()
	if w.state.CRD == nil || w.state.CRD.Annotations["api-approved.kubernetes.io"] == "" {
		t.Errorf("CRD = %+v, want the annotation without which the server refuses it", w.state.CRD)
	}
}

// TestCRDDeletedByAUser tests that a deleted CRD is created again.
func TestCRDDeletedByAUser(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.state.AutoPublish = true
	w.offer(widget("a", onlyA))
	w.settle()
	w.state.CRD.DeletionTimestamp = new(metav1.Now())
	if p := w.settle(); p.CRD.Action != CRDKeep {
		t.Errorf("a CRD that is being deleted is written: %s", p.CRD.Action)
	}
	w.check("v1", "Submitted=False(NotEstablished) Published=False(NotEstablished) Enforced=False", "a: Compatible=True Available=False(NotEstablished)")
	w.state.CRD = nil
	w.settle()
	w.checkServed("v1*")
}

// TestNegotiatedThatLostItsFinalizer tests that the CRD still counts as negotiated.
func TestNegotiatedThatLostItsFinalizer(t *testing.T) {
	t.Parallel()
	w := newSimulation(t)
	w.state.AutoPublish = true
	w.offer(widget("a", onlyA))
	w.settle()
	w.store("one", map[string]any{"a": "x"})
	w.state.Negotiated = nil
	w.settle()
	w.check("v1", published, "a: "+good)
	if owners := w.state.CRD.OwnerReferences; owners[0].UID != w.negotiated("v1").UID {
		t.Errorf("owners = %+v, want the new negotiated resource", owners)
	}
}
