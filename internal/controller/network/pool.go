package network

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
)

// tentative is the age of a claim that may not be durable. Every other claim is older.
const tentative = math.MaxInt64

// pool allocates equal blocks of an IPv4 range, each to one owner. It only does bookkeeping,
// without a lock or clock. The same calls in the same order give the same blocks. A freed block
// is allocated again as late as possible, so that a client with an old address does not reach a
// new owner.
type pool struct {
	within netip.Prefix
	bits   int
	// first is the number of the first block that may be allocated. count is the number of such
	// blocks.
	first, count uint32
	next         uint32 // offset from first at which the search starts
	held         map[string]claim
	// blocks counts the claims on each block.
	blocks map[uint32]int
}

type claim struct {
	prefix netip.Prefix
	since  int64
}

// newPool creates a pool of all blocks of a range.
func newPool(within netip.Prefix, bits int) *pool {
	return &pool{
		within: within, bits: bits, count: 1 << (bits - within.Bits()),
		held: map[string]claim{}, blocks: map[uint32]int{},
	}
}

// newAddressPool creates a pool of single addresses. It excludes the first and last address of
// the range, which are the network and the broadcast address.
func newAddressPool(within netip.Prefix) *pool {
	p := newPool(within, within.Addr().BitLen())
	p.first, p.count = 1, p.count-2
	return p
}

// of returns the block of an owner.
func (p *pool) of(owner string) (netip.Prefix, bool) {
	c, ok := p.held[owner]
	return c.prefix, ok
}

// take returns the owner's block. If the owner has none, it allocates a free block.
func (p *pool) take(owner string) (netip.Prefix, bool) {
	if c, ok := p.held[owner]; ok {
		return c.prefix, true
	}
	if !p.room() {
		return netip.Prefix{}, false
	}
	for i := range p.count {
		offset := (p.next + i) % p.count
		number := p.first + offset
		if p.blocks[number] > 0 {
			continue
		}
		p.next = (offset + 1) % p.count
		prefix := p.block(number)
		p.add(owner, claim{prefix, tentative})
		return prefix, true
	}
	return netip.Prefix{}, false
}

// room reports whether a free block may exist. The result can be true by mistake, but only if a
// claim of another size covers more than one block.
func (p *pool) room() bool { return uint64(len(p.blocks)) < uint64(p.count) }

// claim records a durable claim of an owner, with the time since when it exists. If it overlaps
// other claims, the older claim wins. Younger owners lose their claims and are returned. If
// this owner is the younger one, the error names the older owner.
func (p *pool) claim(owner string, prefix netip.Prefix, since int64) (lost []string, err error) {
	if c, ok := p.held[owner]; ok && c.prefix == prefix {
		c.since = min(c.since, since)
		p.held[owner] = c
		return nil, nil
	}
	p.release(owner)
	if p.touched(prefix) {
		for other, c := range p.held {
			if !c.prefix.Overlaps(prefix) {
				continue
			}
			if c.since < since || c.since == since && other < owner {
				return nil, fmt.Errorf("%s overlaps %s, which belongs to %s", prefix, c.prefix, other)
			}
			lost = append(lost, other)
		}
	}
	for _, other := range lost {
		p.release(other)
	}
	p.add(owner, claim{prefix, since})
	return lost, nil
}

// release frees the block of an owner, if it has one.
func (p *pool) release(owner string) {
	c, ok := p.held[owner]
	if !ok {
		return
	}
	delete(p.held, owner)
	p.each(c.prefix, func(number uint32) {
		if p.blocks[number]--; p.blocks[number] == 0 {
			delete(p.blocks, number)
		}
	})
}

func (p *pool) add(owner string, c claim) {
	p.held[owner] = c
	p.each(c.prefix, func(number uint32) { p.blocks[number]++ })
}

func (p *pool) touched(prefix netip.Prefix) bool {
	taken := false
	p.each(prefix, func(number uint32) { taken = taken || p.blocks[number] > 0 })
	// A range from earlier settings lies outside, where blocks are not counted.
	return taken || !p.within.Contains(prefix.Addr())
}

// each calls visit with the numbers of the allocatable blocks that contain or overlap a prefix.
func (p *pool) each(prefix netip.Prefix, visit func(number uint32)) {
	if !prefix.Addr().Is4() || !p.within.Overlaps(prefix) {
		return
	}
	low, high := p.first, p.first+p.count-1
	if prefix.Bits() > p.within.Bits() {
		base := number(prefix.Masked().Addr()) - number(p.within.Addr())
		from := base >> p.shift()
		to := from
		if prefix.Bits() < p.bits {
			to = from + 1<<(p.bits-prefix.Bits()) - 1
		}
		low, high = max(low, from), min(high, to)
	}
	for n := low; n <= high; n++ {
		visit(n)
	}
}

func (p *pool) shift() int { return p.within.Addr().BitLen() - p.bits }

func (p *pool) block(n uint32) netip.Prefix {
	var raw [4]byte
	binary.BigEndian.PutUint32(raw[:], number(p.within.Addr())+n<<p.shift())
	return netip.PrefixFrom(netip.AddrFrom4(raw), p.bits)
}

func number(a netip.Addr) uint32 {
	raw := a.As4()
	return binary.BigEndian.Uint32(raw[:])
}
