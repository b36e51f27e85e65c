package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/testkit/race"
)

// TestAllPermutations adds up to five imports, some of which cannot agree, in every order, with a
// pass after each.
func TestAllPermutations(t *testing.T) {
	t.Parallel()
	founded := map[string]time.Time{}
	offers := []*apiresourcev1alpha1.APIResourceImport{
		widget("a", aAndB),
		widgetOf("b", "v1", aIsInt, "a"),
		strategy(widget("c", `{"a":{"type":"string","maxLength":5},"b":{"type":"string"},"c":{"type":"boolean"}}`), apiresourcev1alpha1.UpdatePublished),
		strategy(widget("d", `{"a":{"type":"string","enum":["x","y"]},"c":{"type":"boolean"}}`), apiresourcev1alpha1.UpdateNever),
		widgetOf("e", "v1", `{"a":{"type":"string","minLength":1},"c":{"type":"boolean"}}`, "a"),
	}
	for i, o := range []string{"c", "b", "a", "e"} {
		founded[o] = time.Date(2026, 1, i/2, 0, 0, 0, 0, time.UTC)
	}
	most := len(offers)
	if race.Enabled {
		most-- // the 120 orders of five run without the race detector
	}
	for n := 1; n <= most; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			var first *simulation
			permutations(offers[:n], func(order []*apiresourcev1alpha1.APIResourceImport) {
				w := newSimulation(t)
				w.state.Founded = founded
				for _, o := range order {
					w.offer(o)
					w.pass()
				}
				w.settle()
				if first == nil {
					first = w
				}
				sameAgreement(t, first, w)
			})
		})
	}
}

// permutations calls f with every order of some values.
func permutations[T any](values []T, f func([]T)) {
	var rest func(int)
	values = slices.Clone(values)
	rest = func(k int) {
		if k == len(values) {
			f(slices.Clone(values))
			return
		}
		for i := k; i < len(values); i++ {
			values[k], values[i] = values[i], values[k]
			rest(k + 1)
			values[k], values[i] = values[i], values[k]
		}
	}
	rest(0)
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func sameAgreement(tb fataler, a, b *simulation) {
	tb.Helper()
	negotiatedA, statusesA := agreed(a, "v1")
	negotiatedB, statusesB := agreed(b, "v1")
	if diff := cmp.Diff(negotiatedA, negotiatedB); diff != "" {
		tb.Fatalf("another order, another agreement:\n%s", diff)
	}
	if diff := cmp.Diff(statusesA, statusesB); diff != "" {
		tb.Fatalf("another order, other results:\n%s", diff)
	}
}

// drawOffer draws an import of one of five clusters.
func drawOffer(t *rapid.T) *apiresourcev1alpha1.APIResourceImport {
	location := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "location")
	properties := "{"
	var required []string
	for _, field := range []string{"a", "b", "c"} {
		kind := rapid.SampledFrom([]string{"", `{"type":"string"}`, `{"type":"integer"}`, `{"type":"string","maxLength":4}`, `{"type":"string","enum":["x","y"]}`}).Draw(t, field)
		if kind == "" {
			continue
		}
		if len(properties) > 1 {
			properties += ","
		}
		properties += fmt.Sprintf("%q:%s", field, kind)
		if rapid.Bool().Draw(t, field+" is required") {
			required = append(required, field)
		}
	}
	strategies := []apiresourcev1alpha1.SchemaUpdateStrategy{apiresourcev1alpha1.UpdateNever, apiresourcev1alpha1.UpdateUnpublished, apiresourcev1alpha1.UpdatePublished}
	return strategy(widgetOf(location, "v1", properties+"}", required...), rapid.SampledFrom(strategies).Draw(t, "strategy"))
}

// TestAnyHistoryConverges tests that the state before publication depends only on the remaining
// imports. It equals the state of a simulation that has had only these.
func TestAnyHistoryConverges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w, fresh := newSimulation(t), newSimulation(t)
		for range rapid.IntRange(1, 12).Draw(rt, "events") {
			switch rapid.IntRange(0, 3).Draw(rt, "event") {
			case 0:
				w.withdraw(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(rt, "leaves"), "v1")
			case 1:
				w.state.CRD = byHand(t, widget("", aAndB))
				w.pass()
				w.state.CRD = nil
			default:
				w.offer(drawOffer(rt))
			}
			if rapid.Bool().Draw(rt, "pass") {
				w.pass()
			}
		}
		w.settle()
		for _, i := range slices.Backward(w.state.Imports) {
			i = i.DeepCopy()
			i.Status = apiresourcev1alpha1.APIResourceImportStatus{}
			fresh.offer(i)
		}
		fresh.settle()
		sameAgreement(rt, fresh, w)
	})
}

// TestStoredObjectsAreSafe tests any sequence of changes and publications. Every stored object
// stays valid and keeps all its fields in every served version.
func TestStoredObjectsAreSafe(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := newSimulation(t)
		w.state.AutoPublish = rapid.Bool().Draw(rt, "auto publish")
		for range rapid.IntRange(1, 15).Draw(rt, "events") {
			switch rapid.IntRange(0, 4).Draw(rt, "event") {
			case 0:
				w.withdraw(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(rt, "leaves"), "v1")
			case 1:
				if len(w.state.Negotiated) > 0 {
					w.publish("v1", rapid.Bool().Draw(rt, "publish"))
				}
			case 2:
				w.storeValid(rt)
			default:
				w.offer(drawOffer(rt))
			}
			if rapid.Bool().Draw(rt, "pass") {
				w.pass()
				w.checkStored(rt)
			}
		}
		w.settle()
		w.checkStored(rt)
	})
}

// storeValid stores an object if the CRD accepts it unchanged.
func (w *simulation) storeValid(rt *rapid.T) {
	if w.state.CRD == nil {
		return
	}
	before := len(w.objects)
	spec := map[string]any{}
	for _, field := range []string{"a", "b", "c"} {
		switch rapid.IntRange(0, 3).Draw(rt, field+" of the object") {
		case 0:
			spec[field] = rapid.SampledFrom([]string{"x", "longer"}).Draw(rt, "value")
		case 1:
			spec[field] = int64(7)
		}
	}
	w.store(fmt.Sprintf("object-%d", before), spec)
	if w.firstUnfit(rt, before) != "" {
		w.objects = w.objects[:before]
	}
}

func (w *simulation) checkStored(rt *rapid.T) {
	if len(w.objects) == 0 {
		return
	}
	if w.state.CRD == nil {
		rt.Fatalf("the CRD is gone, and %d objects with it", len(w.objects))
	}
	if problem := w.firstUnfit(rt, 0); problem != "" {
		rt.Fatalf("the CRD harms what is stored: %s", problem)
	}
}

// firstUnfit returns how the CRD's versions would change the objects from an index on.
func (w *simulation) firstUnfit(rt *rapid.T, from int) string {
	for _, v := range w.state.CRD.Spec.Versions {
		spec, err := SpecOf(w.state.CRD, v.Name)
		if err != nil {
			rt.Fatal(err)
		}
		f, err := newFitter(spec)
		if err != nil {
			rt.Fatal(err)
		}
		for _, o := range w.objects[from:] {
			if obstacle := f.check(w.tb.Context(), o); obstacle != nil {
				return obstacle.Path + ": " + obstacle.Reason
			}
		}
	}
	return ""
}
