// Package ipam allocates the addresses of one node's range.
//
// A Pool is a value in memory: it does no I/O, and uses no locks and no clock. It is not saved,
// because the kernel stores the address of each instance (package bridge) as long as the instance
// has it. A new riklet process fills its Pool from there.
package ipam

import (
	"errors"
	"fmt"
	"net/netip"
)

var (
	// ErrRange is returned by New for an unusable range.
	ErrRange = errors.New("unusable address range")
	// ErrExhausted is returned by Allocate if every address has an owner.
	ErrExhausted = errors.New("no address is free")
	// ErrTaken is returned by Reserve for an address of another owner.
	ErrTaken = errors.New("address is in use")
	// ErrOutside is returned by Reserve for an address that is not allocatable.
	ErrOutside = errors.New("address is outside the range")
)

// The prefix lengths of a range. It needs at least one address for the gateway and one to
// allocate. It must be small enough to scan when it is nearly full.
const (
	longest  = 30
	shortest = 16
)

// Pool is the addresses of one range and their owners. It is not safe for concurrent use.
type Pool struct {
	prefix    netip.Prefix
	gateway   netip.Addr
	last      netip.Addr // the highest to allocate
	latest    netip.Addr // allocated most recently
	capacity  int
	owners    map[netip.Addr]string
	addresses map[string]netip.Addr
}

// New returns a Pool for a range in which all addresses are free. The first address is the
// gateway's.
func New(prefix netip.Prefix) (*Pool, error) {
	if !prefix.IsValid() || !prefix.Addr().Is4() {
		return nil, fmt.Errorf("%w: %s: only IPv4 is supported", ErrRange, prefix)
	}
	if prefix != prefix.Masked() {
		return nil, fmt.Errorf("%w: %s does not begin with its first address; use %s", ErrRange, prefix, prefix.Masked())
	}
	if prefix.Bits() > longest || prefix.Bits() < shortest {
		return nil, fmt.Errorf("%w: %s: the prefix length must be between /%d and /%d", ErrRange, prefix, shortest, longest)
	}
	size := 1 << (32 - prefix.Bits())
	p := &Pool{
		prefix: prefix, gateway: prefix.Addr().Next(), last: offset(prefix.Addr(), size-2), capacity: size - 3,
		owners: map[netip.Addr]string{}, addresses: map[string]netip.Addr{},
	}
	p.latest = p.gateway
	return p, nil
}

// Check returns the address of the check port of the node that has a range. It is the last address,
// which no Pool allocates. The range must be IPv4.
func Check(prefix netip.Prefix) netip.Addr {
	return offset(prefix.Masked().Addr(), 1<<(32-prefix.Bits())-1)
}

// offset adds n to an IPv4 address.
func offset(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		n += int(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	return netip.AddrFrom4(b)
}

// Prefix returns the range.
func (p *Pool) Prefix() netip.Prefix { return p.prefix }

// Gateway returns the address that the node itself has in the range.
func (p *Pool) Gateway() netip.Addr { return p.gateway }

// Free returns the number of addresses without an owner.
func (p *Pool) Free() int { return p.capacity - len(p.owners) }

// Address returns the address of an owner.
func (p *Pool) Address(owner string) (netip.Addr, bool) {
	a, ok := p.addresses[owner]
	return a, ok
}

// Allocate returns an address for an owner, the same one if it already has one. It cycles through
// the range, so that a freed address is not reused at once: clients may still send to its former
// owner.
func (p *Pool) Allocate(owner string) (netip.Addr, error) {
	if a, ok := p.addresses[owner]; ok {
		return a, nil
	}
	if p.Free() <= 0 {
		return netip.Addr{}, fmt.Errorf("%w: all %d of %s are in use", ErrExhausted, p.capacity, p.prefix)
	}
	a := p.after(p.latest)
	for p.owners[a] != "" {
		a = p.after(a)
	}
	p.latest = a
	p.take(owner, a)
	return a, nil
}

// after returns the next address to allocate, which is the first one after the last.
func (p *Pool) after(a netip.Addr) netip.Addr {
	if !a.Less(p.last) {
		return p.gateway.Next()
	}
	return a.Next()
}

func (p *Pool) take(owner string, a netip.Addr) {
	p.owners[a] = owner
	p.addresses[owner] = a
}

// Reserve records an address that an owner already has.
func (p *Pool) Reserve(owner string, a netip.Addr) error {
	if has, ok := p.addresses[owner]; ok && has == a {
		return nil
	} else if ok {
		return fmt.Errorf("%w: %s has %s, not %s", ErrTaken, owner, has, a)
	}
	if !a.Is4() || !p.gateway.Less(a) || p.last.Less(a) {
		return fmt.Errorf("%w: %s in %s", ErrOutside, a, p.prefix)
	}
	if other := p.owners[a]; other != "" {
		return fmt.Errorf("%w: %s belongs to %s", ErrTaken, a, other)
	}
	p.take(owner, a)
	// So that a new riklet process, too, continues after the addresses that were allocated last.
	if p.latest.Less(a) {
		p.latest = a
	}
	return nil
}

// Release frees the address of an owner, if it has one.
func (p *Pool) Release(owner string) {
	if a, ok := p.addresses[owner]; ok {
		delete(p.owners, a)
		delete(p.addresses, owner)
	}
}
