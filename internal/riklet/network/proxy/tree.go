package proxy

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
)

const (
	// fewRules are cheaper to pass one by one than to be divided again.
	fewRules = 64
	// fewBackends is the same where every rule throws dice.
	fewBackends = 32
	// step is how many bits a chain of a tree divides by.
	step = 4
)

// leaf is a rule for one number: an address or a port.
type leaf struct {
	number uint32
	rule   string
}

// tree spreads rules over chains by the leading bits of their numbers.
type tree struct {
	add   func(chain, rule string)
	name  func(base uint32, bits int) string // of the chain for numbers that begin so
	match func(base uint32, bits int) string // what such numbers are matched by
	width int                                // bits of a number
	jump  bool                               // what no chain below decides comes back
}

// grow fills a chain with the rules of the numbers that begin with the given bits
// of base: as they are when they are few, otherwise by way of more chains.
func (t tree) grow(chain string, base uint32, bits int, leaves []leaf) {
	slices.SortStableFunc(leaves, func(a, b leaf) int { return cmp.Compare(a.number, b.number) })
	t.divide(chain, base, bits, leaves)
}

func (t tree) divide(chain string, base uint32, bits int, leaves []leaf) {
	if len(leaves) <= fewRules || bits >= t.width {
		for _, l := range leaves {
			t.add(chain, l.rule)
		}
		return
	}
	below := min(bits+step, t.width)
	size := uint64(1) << (t.width - below)
	for len(leaves) > 0 {
		from := leaves[0].number &^ uint32(size-1)
		n, _ := slices.BinarySearchFunc(leaves, uint64(from)+size, func(l leaf, end uint64) int {
			return cmp.Compare(uint64(l.number), end)
		})
		child := t.name(from, below)
		how := " -g "
		if t.jump {
			how = " -j "
		}
		t.add(chain, t.match(from, below)+how+child)
		t.divide(child, from, below, leaves[:n])
		leaves = leaves[n:]
	}
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func address(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

// balance fills a chain that gives every backend the same share. Many are divided
// by a hash of their UIDs, so that one that comes or goes changes its own part and
// the odds of the others, not their order.
func (r *renderer) balance(chain, name, protocol string, backends []backend, depth int) {
	type part struct {
		target string
		weight int
	}
	var parts []part
	if len(backends) <= fewBackends || depth == maxDepth {
		for _, b := range backends {
			parts = append(parts, part{r.send(protocol, b), 1})
		}
	} else {
		for i, some := range divide(backends, depth) {
			if len(some) == 0 {
				continue
			}
			child := hash("RIKLET-B-", name, strconv.Itoa(i))
			r.balance(child, name+"/"+strconv.Itoa(i), protocol, some, depth+1)
			parts = append(parts, part{"-g " + child, len(some)})
		}
	}
	left := len(backends)
	// The protocol is said again in every rule: a target with a port demands it.
	for _, p := range parts {
		if p.weight == left {
			r.add(nat, chain, "-p", protocol, p.target)
			return
		}
		// Eleven digits: the kernel keeps 31 bits of it.
		odds := strconv.FormatFloat(float64(p.weight)/float64(left), 'f', 11, 64)
		r.add(nat, chain, "-p", protocol, "-m statistic --mode random --probability", odds, p.target)
		left -= p.weight
	}
}

// maxDepth bounds the chains that lead to one another: the kernel follows 16. Four
// here are enough for two million endpoints of one service.
const maxDepth = 4

// divide sorts backends into sixteen parts. Depth says which four bits of the
// hash to go by.
func divide(backends []backend, depth int) (parts [1 << step][]backend) {
	for _, b := range backends {
		sum := sha256.Sum256([]byte(b.uid))
		i := sum[depth/2] >> (4 * (depth % 2)) & 0xf
		parts[i] = append(parts[i], b)
	}
	return parts
}
