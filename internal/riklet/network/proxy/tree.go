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
	// fewRules is the number of rules up to which a linear chain is cheaper than a further
	// division.
	fewRules = 64
	// fewBackends is the same for rules that each draw a random number.
	fewBackends = 32
	// step is how many bits a chain of a tree divides by.
	step = 4
)

// leaf is a rule for one number: an address or a port.
type leaf struct {
	number uint32
	rule   string
}

// tree distributes rules over chains by the leading bits of their numbers.
type tree struct {
	add   func(chain, rule string)
	name  func(base uint32, bits int) string // the chain for numbers with these bits
	match func(base uint32, bits int) string // the match for such numbers
	width int                                // bits of a number
	jump  bool                               // unmatched packets return from the chains below
}

// grow fills a chain with the rules of the numbers that begin with the given bits of base:
// directly if they are few, otherwise through more chains.
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

// balance fills a chain that gives every backend the same share. Many backends are divided by a
// hash of their UIDs. Thus a backend that is added or removed changes only its own part and the
// probabilities of the others, not their order.
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
	// Every rule repeats the protocol, because a target with a port requires it.
	for _, p := range parts {
		if p.weight == left {
			r.add(nat, chain, "-p", protocol, p.target)
			return
		}
		// Eleven digits: the kernel uses 31 bits of it.
		probability := strconv.FormatFloat(float64(p.weight)/float64(left), 'f', 11, 64)
		r.add(nat, chain, "-p", protocol, "-m statistic --mode random --probability", probability, p.target)
		left -= p.weight
	}
}

// maxDepth bounds the depth of nested chains. The kernel allows 16. Four here are enough for two
// million endpoints of one service.
const maxDepth = 4

// divide sorts backends into sixteen parts. depth selects the four bits of the hash.
func divide(backends []backend, depth int) (parts [1 << step][]backend) {
	for _, b := range backends {
		sum := sha256.Sum256([]byte(b.uid))
		i := sum[depth/2] >> (4 * (depth % 2)) & 0xf
		parts[i] = append(parts[i], b)
	}
	return parts
}
