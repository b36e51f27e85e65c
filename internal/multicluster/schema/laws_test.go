package schema

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// specOf is the spec of a meet, or nil.
func specOf(t rapid.TB, offers ...Offer) *apiresourcev1alpha1.CommonAPIResourceSpec {
	t.Helper()
	read, unreadable := readOffers(inOrder(offers))
	if unreadable != nil {
		t.Fatalf("reading the offers: %v", unreadable)
	}
	agreement, _ := agree(read)
	if agreement == nil {
		return nil
	}
	return &agreement.Spec
}

// text shows a spec with its schema readable.
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

// TestMeetIsCommutativeAndIdempotent: neither order nor repetition matters.
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

// TestMeetIsAssociative: it does not matter which offers are met first.
func TestMeetIsAssociative(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		offers := drawFamily(t, 3)
		want := specOf(t, offers...)
		for i := range offers {
			rest := slices.Delete(slices.Clone(offers), i, i+1)
			first := specOf(t, rest...)
			var got *apiresourcev1alpha1.CommonAPIResourceSpec
			if first != nil {
				got = specOf(t, Offer{Location: "meet", Spec: *first}, offers[i])
			}
			if diff := cmp.Diff(text(want), text(got)); diff != "" {
				t.Fatalf("with %s met last, the meet is another:\n%s\noffers:\n%s\n%s\n%s", offers[i].Location, diff,
					text(&offers[0].Spec), text(&offers[1].Spec), text(&offers[2].Spec))
			}
			if got != nil {
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("with %s met last, what is not the schema is another:\n%s", offers[i].Location, diff)
				}
			}
		}
	})
}

// TestMeetOfAnyOrderN22: every permutation of up to five offers gives the same
// agreement, and reports the same.
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

func agreeOn(t *testing.T, offers []Offer) (*Agreement, []apiresourcev1alpha1.Obstacle) {
	t.Helper()
	return agree(mustRead(t, inOrder(offers)...))
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
