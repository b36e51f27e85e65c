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

// end is the end of a range to which a bound belongs.
type end int

const (
	above end = 1  // maximum
	below end = -1 // minimum
)

// implies reports whether every number that satisfies b also satisfies c. The validation of
// Kubernetes compares an integer with the truncated bound. For example, an exclusive maximum of
// 2.5 refuses 2. Both readings of the bounds must imply each other.
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

// integral converts a bound of numbers to the equivalent bound of integers, in one canonical
// form: below 3 is at most 2. ok is false if it refuses all integers. The bound is infinite if it
// allows all integers.
func (e end) integral(b bound) (bound, bool) {
	if outOfRange(b.value) {
		return bound{value: math.Inf(-1)}, e == below && b.value < 0
	}
	switch {
	case b.exclusive:
		b.value = math.Trunc(b.value)
		// Above 2^53, the next integer is not a float64.
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

// tightest returns the bounds that no other bound implies, sorted.
func (e end) tightest(bounds []bound) []bound {
	sorted := slices.Clone(bounds)
	for i := range sorted {
		// Zero has two signs in a float64 and in JSON, but is one bound.
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
