package splitter

import (
	"cmp"
	"math/bits"
	"slices"
)

// seat is one participant of an apportionment.
type seat struct {
	// index identifies the seat for the caller.
	index  int
	name   string
	weight uint64
	// has is the number that the seat has already. With -1, apportion ignores it.
	has int64
	// gets is the result.
	gets int64

	remainder uint64
}

// apportion divides whole over the seats in proportion to their weights. Each seat gets its
// quota, rounded up or down. The seats that have the rounded-up quota already come first, so that
// nothing moves only because of rounding. The seats with the largest remainders come next, then
// the names decide. The sum of the weights must fit in 64 bits. If all weights are 0, every seat
// gets 0.
//
// apportion changes the order of the seats. The order does not affect the result.
func apportion(whole int64, seats []seat) {
	var sum uint64
	for i := range seats {
		sum += seats[i].weight
		seats[i].gets = 0
	}
	if sum == 0 || whole <= 0 {
		return
	}
	left := whole
	for i := range seats {
		hi, lo := bits.Mul64(uint64(whole), seats[i].weight)
		quota, remainder := bits.Div64(hi, lo, sum)
		seats[i].gets, seats[i].remainder = int64(quota), remainder
		left -= int64(quota)
	}
	if left == 0 {
		return
	}
	slices.SortFunc(seats, func(a, b seat) int {
		return cmp.Or(
			cmp.Compare(b.keeps(), a.keeps()),
			cmp.Compare(b.remainder, a.remainder),
			cmp.Compare(a.name, b.name),
		)
	})
	for i := range left {
		seats[i].gets++
	}
}

// keeps returns 1 if the seat already has its quota, rounded up.
func (s *seat) keeps() int {
	if s.remainder > 0 && s.has > s.gets {
		return 1
	}
	return 0
}

// take divides n over the sites in proportion to their amounts, and calls use with the result of
// each site. No site gets more than its amount. take returns the sum of the results.
func take(n int64, sites []*site, amount func(*site) int64, use func(*site, int64)) int64 {
	if n <= 0 {
		return 0
	}
	var seats []seat
	var sum int64
	for i, s := range sites {
		if a := amount(s); a > 0 {
			seats = append(seats, seat{index: i, name: s.name, weight: uint64(a), has: -1})
			sum += a
		}
	}
	n = min(n, sum)
	apportion(n, seats)
	for i := range seats {
		use(sites[seats[i].index], seats[i].gets)
	}
	return n
}
