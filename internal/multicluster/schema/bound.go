package schema

import (
	"cmp"
	"math"
	"slices"
)

// bound is one end of a range of numbers.
type bound struct {
	value     float64
	exclusive bool
}

// end says which end of a range a bound is.
type end int

const (
	above end = 1  // maximum
	below end = -1 // minimum
)

// implies says whether every number that fulfills b fulfills c. Kubernetes' validation
// compares an integer with the bound cut off to an integer, so that 2 is refused by
// an exclusive maximum of 2.5: both readings have to hold.
func (e end) implies(b, c bound) bool {
	if b == c {
		return true
	}
	if outOfRange(b.value) || outOfRange(c.value) {
		return false
	}
	return e.within(b, c) && e.within(bound{math.Trunc(b.value), b.exclusive}, bound{math.Trunc(c.value), c.exclusive})
}

func (e end) within(b, c bound) bool {
	order := cmp.Compare(b.value, c.value) * int(e)
	return order < 0 || order == 0 && (b.exclusive || !c.exclusive)
}

// integral is the bound that a bound of numbers means for integers, in the one form
// that it has there: below 3 is at most 2. ok is false if it refuses them all, and
// the bound infinite if it allows them all.
func (e end) integral(b bound) (bound, bool) {
	if outOfRange(b.value) {
		return bound{value: math.Inf(-1)}, e == below && b.value < 0
	}
	switch {
	case b.exclusive:
		b.value = math.Trunc(b.value)
		// Beyond 2^53 the next integer is no float64.
		if next := b.value - float64(e); b.value-next == float64(e) {
			b = bound{value: next}
		}
	case e == above:
		b.value = math.Floor(b.value)
	default:
		b.value = math.Ceil(b.value)
	}
	return b, true
}

func outOfRange(value float64) bool { return value >= math.MaxInt64 || value < math.MinInt64 }

func mapBounds(bounds []bound, f func(bound) (bound, bool)) ([]bound, bool) {
	var mapped []bound
	for _, b := range bounds {
		m, ok := f(b)
		if !ok {
			return nil, false
		}
		if !math.IsInf(m.value, 0) {
			mapped = append(mapped, m)
		}
	}
	return mapped, true
}

// tightest keeps of some bounds those that no other implies, in order.
func (e end) tightest(bounds []bound) []bound {
	sorted := slices.Clone(bounds)
	for i := range sorted {
		// Zero has two signs in a float64 and in JSON, and is one bound.
		if sorted[i].value == 0 {
			sorted[i].value = 0
		}
	}
	slices.SortFunc(sorted, func(b, c bound) int {
		if order := cmp.Compare(b.value, c.value) * int(e); order != 0 {
			return order
		}
		if b.exclusive == c.exclusive {
			return 0
		}
		if b.exclusive {
			return -1
		}
		return 1
	})
	sorted = slices.Compact(sorted)
	var kept []bound
	for i, b := range sorted {
		implied := slices.ContainsFunc(sorted[:i], func(c bound) bool { return e.implies(c, b) }) ||
			slices.ContainsFunc(sorted[i+1:], func(c bound) bool { return e.implies(c, b) })
		if !implied {
			kept = append(kept, b)
		}
	}
	return kept
}
