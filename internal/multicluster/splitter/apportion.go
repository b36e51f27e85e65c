package splitter

import (
	"cmp"
	"math/bits"
	"slices"
)

// seat is one that takes part in an apportionment.
type seat struct {
	// index is the caller's.
	index  int
	name   string
	weight uint64
	// has is what it has already; -1: that is not to count.
	has int64
	// gets is the result.
	gets int64

	remainder uint64
}

// apportion divides a whole over seats in proportion to their weights: each gets its
// quota, rounded up or down. Rounded up are those that have that much already, so that
// nothing is moved only to round in another way; then those with the largest remainders;
// then by name. The sum of the weights has to fit in 64 bits. Without any weight nobody
// gets anything.
//
// The order of the seats is changed, and counts for nothing.
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

// keeps is 1 if the seat has its quota, rounded up, already.
func (s *seat) keeps() int {
	if s.remainder > 0 && s.has > s.gets {
		return 1
	}
	return 0
}

// take takes n from amounts in proportion to them, or all if that is less, and says how
// much it was.
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
