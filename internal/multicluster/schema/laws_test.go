package schema

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// specOf returns the spec of a meet, or nil.
func specOf(t rapid.TB, offers ...Offer) *apiresourcev1alpha1.CommonAPIResourceSpec {
	t.Helper()
	agreement, _ := agreeOn(t, offers)
	if agreement == nil {
		return nil
	}
	return &agreement.Spec
}

// text prints a spec with a readable schema.
func text(s *apiresourcev1alpha1.CommonAPIResourceSpec) string {
	if s == nil {
		return "no agreement"
	}
	return string(s.OpenAPIV3Schema.Raw)
}

func drawFamily(t *rapid.T, size int) []Offer {
	offers := family(newGenerator(rapid.Uint64().Draw(t, "seed")), size)
	for i := range offers {
		s := &offers[i].Spec
		s.Names.ShortNames = rapid.SampledFrom([][]string{nil, {"ex"}, {"ex", "exs"}, {"exs", "ex"}}).Draw(t, "short names")
		s.ColumnDefinitions = rapid.SampledFrom([][]apiresourcev1alpha1.ColumnDefinition{
			nil, {{Name: "A", Type: "string", JSONPath: ".spec.a"}},
			{{Name: "B", Type: "string", JSONPath: ".spec.b"}, {Name: "A", Type: "string", JSONPath: ".spec.c", Priority: 1}},
		}).Draw(t, "columns")
		s.SubResources = rapid.SampledFrom([][]apiresourcev1alpha1.SubResource{nil, {{Name: "status"}}}).Draw(t, "subresources")
	}
	return offers
}

// TestMeetIsCommutativeAndIdempotent tests that neither order nor repetition affects the meet.
func TestMeetIsCommutativeAndIdempotent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		offers := drawFamily(t, 2)
		want := specOf(t, offers...)
		if diff := cmp.Diff(text(want), text(specOf(t, offers[1], offers[0]))); diff != "" {
			t.Fatalf("another order gives another meet:\n%s", diff)
		}
		if diff := cmp.Diff(text(want), text(specOf(t, offers[0], offers[1], offers[0], offers[1]))); diff != "" {
			t.Fatalf("repetition gives another meet:\n%s", diff)
		}
		if want == nil {
			return
		}
		again := specOf(t, Offer{Location: "meet", Spec: *want}, Offer{Location: "again", Spec: *want})
		if diff := cmp.Diff(want, again); diff != "" {
			t.Fatalf("a meet with itself is another:\n%s", diff)
		}
		withMember := specOf(t, Offer{Location: "meet", Spec: *want}, offers[0])
		if diff := cmp.Diff(text(want), text(withMember)); diff != "" {
			t.Fatalf("a meet with one of its members is another:\n%s", diff)
		}
	})
}

// TestMeetIsAssociative tests that it does not matter which offers are met first. In two cases
// the meet may hold less, but not more. One is that the common part cannot be written as a
// schema. The other is that defaults differ, and the last offer may lead to another default, or
// to none. In the second case the members are met again, because a rule of one must not be
// evaluated with a default that only another one has.
func TestMeetIsAssociative(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		offers := drawFamily(t, 3)
		want := specOf(t, offers...)
		for i := range offers {
			first, lacking := agreeOn(t, slices.Delete(slices.Clone(offers), i, i+1))
			var got *apiresourcev1alpha1.CommonAPIResourceSpec
			var later []apiresourcev1alpha1.Obstacle
			if first != nil {
				lacking = first.Dropped
				var meet *Agreement
				again := []Offer{{Location: "meet", Spec: first.Spec}, offers[i]}
				if slices.ContainsFunc(lacking, startsWith(fallbackDiffers)) {
					again = append(again, offers...)
				}
				if meet, later = agreeOn(t, again); meet != nil {
					got, later = &meet.Spec, meet.Dropped
				}
			}
			fail := func(how string, want, got *apiresourcev1alpha1.CommonAPIResourceSpec) {
				t.Fatalf("with %s met last, %s:\n%s\nthe others lack: %v\nwith it they lack: %v%s", offers[i].Location,
					how, cmp.Diff(text(want), text(got))+cmp.Diff(want, got), lacking, later, schemasOf(offers))
			}
			otherDefaults := slices.ContainsFunc(slices.Concat(lacking, later), startsWith(fallbackDiffers))
			if got != nil {
				if want == nil {
					fail("there is a meet", want, got)
				}
				less, both := got, specOf(t, Offer{Location: "got", Spec: *got}, Offer{Location: "want", Spec: *want})
				if otherDefaults {
					less, both = withoutRequired(t, less), withoutRequired(t, both)
				}
				if text(less) != text(both) {
					fail("the meet holds more", both, less)
				}
			}
			switch {
			case slices.ContainsFunc(lacking, startsWith(inexpressible)) || slices.ContainsFunc(later, startsWith(filledIn)):
			case otherDefaults: // a property may then be required that another offer does not have
			case !reflect.DeepEqual(want, got):
				fail("the meet is another", want, got)
			}
		}
	})
}

func startsWith(reason string) func(apiresourcev1alpha1.Obstacle) bool {
	return func(o apiresourcev1alpha1.Obstacle) bool { return strings.HasPrefix(o.Reason, reason) }
}

// withoutRequired returns a spec whose schema requires no property and has no defaults.
func withoutRequired(t rapid.TB, s *apiresourcev1alpha1.CommonAPIResourceSpec) *apiresourcev1alpha1.CommonAPIResourceSpec {
	t.Helper()
	root, err := readRoot(propsOf(t, s))
	if err != nil {
		t.Fatalf("reading a meet: %v", err)
	}
	root.demandNothing()
	free := s.DeepCopy()
	free.OpenAPIV3Schema.Raw = []byte(encode(writeRoot(root)))
	return free
}

func (n *node) demandNothing() {
	n.required, n.fallback = nil, ""
	for _, below := range append(slices.Collect(maps.Values(n.properties)), n.items, n.additional) {
		if below != nil {
			below.demandNothing()
		}
	}
}

func schemasOf(offers []Offer) string {
	var b strings.Builder
	b.WriteString("\noffers:")
	for i := range offers {
		b.WriteString("\n" + text(&offers[i].Spec))
	}
	return b.String()
}

// TestMeetOfAnyOrderN22 tests that every permutation of up to five offers has the same agreement
// and the same obstacles.
func TestMeetOfAnyOrderN22(t *testing.T) {
	t.Parallel()
	for seed := range cases(12, 4) {
		offers := family(newGenerator(1000+seed), 2+int(seed%4))
		agreement, obstacles := agreeOn(t, offers)
		permute(offers, func(permuted []Offer) {
			a, o := agreeOn(t, permuted)
			if diff := cmp.Diff(agreement, a); diff != "" {
				t.Fatalf("seed %d: another order gives another agreement:\n%s", seed, diff)
			}
			if diff := cmp.Diff(obstacles, o); diff != "" {
				t.Fatalf("seed %d: another order gives other obstacles:\n%s", seed, diff)
			}
		})
	}
}

func agreeOn(t rapid.TB, offers []Offer) (*Agreement, []apiresourcev1alpha1.Obstacle) {
	t.Helper()
	return (&meeting{}).agree(mustRead(t, inOrder(offers)...))
}

func permute(offers []Offer, visit func([]Offer)) {
	var from func(int)
	from = func(k int) {
		if k == len(offers) {
			visit(offers)
			return
		}
		for i := k; i < len(offers); i++ {
			offers[k], offers[i] = offers[i], offers[k]
			from(k + 1)
			offers[k], offers[i] = offers[i], offers[k]
		}
	}
	from(0)
}
