package network

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPoolEdges(t *testing.T) {
	t.Parallel()
	p := newPool(netip.MustParsePrefix("10.62.0.0/22"), 24)
	for i, want := range []string{"10.62.0.0/24", "10.62.1.0/24", "10.62.2.0/24", "10.62.3.0/24"} {
		if got, ok := p.take(fmt.Sprint(i)); !ok || got.String() != want {
			t.Errorf("take = %s, %v, want %s", got, ok, want)
		}
	}
	if got, ok := p.take("late"); ok {
		t.Errorf("take of a full pool = %s", got)
	}
	if got, ok := p.take("2"); !ok || got.String() != "10.62.2.0/24" {
		t.Errorf("take again = %s, %v, want what it has", got, ok)
	}
	p.release("1")
	p.release("1")
	if got, ok := p.take("late"); !ok || got.String() != "10.62.1.0/24" {
		t.Errorf("take after a release = %s, %v", got, ok)
	}

	a := newAddressPool(netip.MustParsePrefix("10.63.0.0/30"))
	for _, want := range []string{"10.63.0.1/32", "10.63.0.2/32"} {
		if got, ok := a.take(want); !ok || got.String() != want {
			t.Errorf("take = %s, %v, want %s", got, ok, want)
		}
	}
	if got, ok := a.take("late"); ok {
		t.Errorf("take = %s, want neither the first nor the last of the range", got)
	}
}

// TestPoolReusesLate: the block that was freed last is allocated last.
func TestPoolReusesLate(t *testing.T) {
	t.Parallel()
	p := newAddressPool(netip.MustParsePrefix("10.63.0.0/29"))
	first, _ := p.take("a")
	p.release("a")
	for range 5 {
		got, ok := p.take("b")
		if !ok || got == first {
			t.Fatalf("take = %s, %v, want another than %s while there is one", got, ok, first)
		}
		p.release("b")
	}
	if got, _ := p.take("b"); got != first {
		t.Errorf("take = %s, want %s in its turn", got, first)
	}
}

func TestPoolOlderWins(t *testing.T) {
	t.Parallel()
	within := netip.MustParsePrefix("10.62.0.0/16")
	big, small, outside := netip.MustParsePrefix("10.62.4.0/23"), netip.MustParsePrefix("10.62.5.128/25"), netip.MustParsePrefix("10.70.0.0/24")
	p := newPool(within, 24)
	if lost, err := p.claim("young", small, 20); len(lost) > 0 || err != nil {
		t.Fatalf("claim = %v, %v", lost, err)
	}
	if lost, err := p.claim("old", big, 10); !slices.Equal(lost, []string{"young"}) || err != nil {
		t.Errorf("claim of the older = %v, %v, want the younger to lose", lost, err)
	}
	if _, ok := p.of("young"); ok {
		t.Error("the younger still has it")
	}
	if lost, err := p.claim("young", small, 20); len(lost) > 0 || err == nil {
		t.Errorf("claim of the younger = %v, %v, want an error", lost, err)
	}
	for i := range 256 - 2 {
		if got, ok := p.take(fmt.Sprint(i)); !ok || got.Overlaps(big) {
			t.Fatalf("take = %s, %v, want what does not overlap %s", got, ok, big)
		}
	}
	if got, ok := p.take("late"); ok {
		t.Errorf("take of a full pool = %s", got)
	}
	// A claim of an earlier range is kept and conflicts only with claims of that range.
	if lost, err := p.claim("elsewhere", outside, 1); len(lost) > 0 || err != nil {
		t.Errorf("claim outside = %v, %v", lost, err)
	}
	if _, err := p.claim("elsewhere too", outside, 2); err == nil {
		t.Error("two claims of one range outside, want an error")
	}
	p.release("old")
	if _, err := p.claim("young", small, 20); err != nil {
		t.Errorf("claim after the older is gone = %v", err)
	}
}

// TestPoolProperty: after any sequence of calls, no two owners overlap, every owner keeps its
// block, and a pool is full only when no block is free.
func TestPoolProperty(t *testing.T) {
	t.Parallel()
	within := netip.MustParsePrefix("10.62.0.0/20")
	rapid.Check(t, func(t *rapid.T) {
		p := newPool(within, 24)
		owner := rapid.StringMatching("[a-h]{1,2}")
		had := map[string]netip.Prefix{}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				who := owner.Draw(t, "who")
				got, ok := p.take(who)
				if before, has := had[who]; has && (!ok || got != before) {
					t.Fatalf("%s had %s and got %s, %v", who, before, got, ok)
				}
				if !ok && len(had) < 8 { // a claim covers at most two blocks
					t.Fatalf("full with %d owners", len(had))
				}
				if ok {
					had[who] = got
				}
			},
			"claim": func(t *rapid.T) {
				who := owner.Draw(t, "who")
				at := netip.AddrFrom4([4]byte{10, 62, byte(rapid.IntRange(0, 20).Draw(t, "block")), byte(rapid.IntRange(0, 255).Draw(t, "address"))})
				prefix := netip.PrefixFrom(at, rapid.IntRange(23, 28).Draw(t, "bits")).Masked()
				lost, err := p.claim(who, prefix, int64(rapid.IntRange(0, 3).Draw(t, "since")))
				delete(had, who)
				for _, other := range lost {
					delete(had, other)
				}
				if err == nil {
					had[who] = prefix
				}
			},
			"release": func(t *rapid.T) {
				who := owner.Draw(t, "who")
				p.release(who)
				delete(had, who)
			},
			"": func(t *rapid.T) {
				for a, one := range had {
					if got, ok := p.of(a); !ok || got != one {
						t.Fatalf("%s has %s, %v, want %s", a, got, ok, one)
					}
					for b, two := range had {
						if a != b && one.Overlaps(two) {
							t.Fatalf("%s has %s, and %s has %s", a, one, b, two)
						}
					}
				}
				if len(p.held) != len(had) {
					t.Fatalf("%d owners, want %d", len(p.held), len(had))
				}
			},
		})
		for who := range had {
			p.release(who)
		}
		if len(p.blocks) > 0 {
			t.Fatalf("blocks %v have no owner", p.blocks)
		}
	})
}
