// Package ipam gives out the addresses of one node's range.
//
// A Pool is a value in memory: it does no I/O, takes no locks and tells no
// time. Nothing of it is written down, because the kernel remembers which
// instance has which address (package bridge) for as long as the instance has
// one; a new agent fills its Pool from there.
package ipam

import (
	"errors"
	"fmt"
	"net/netip"
)

var (
	// ErrRange is returned by New for a range that no Pool can be made of.
	ErrRange = errors.New("unusable range of addresses")
	// ErrExhausted is returned by Allocate when every address has an owner.
	ErrExhausted = errors.New("no address is free")
	// ErrTaken is returned by Reserve for an address that another owner has.
	ErrTaken = errors.New("address is taken")
	// ErrOutside is returned by Reserve for an address that cannot be given out.
	ErrOutside = errors.New("address is not one of the range")
)

// The sizes of a range: one for the gateway and one to give out at least, and
// no more than can be scanned at once when it is nearly full.
const (
	longest  = 30
	shortest = 16
)

// Pool is the addresses of one range and who has them. Its methods must not be
// called at the same time.
type Pool struct {
	prefix    netip.Prefix
	gateway   netip.Addr
	last      netip.Addr // the highest to give out
	latest    netip.Addr // given out most recently
	capacity  int
	owners    map[netip.Addr]string
	addresses map[string]netip.Addr
}

// New makes a Pool of a range, all of whose addresses are free. The first is
// the gateway's.
func New(prefix netip.Prefix) (*Pool, error) {
	if !prefix.IsValid() || !prefix.Addr().Is4() {
		return nil, fmt.Errorf("%w: %s: only IPv4 can be used yet", ErrRange, prefix)
	}
	if prefix != prefix.Masked() {
		return nil, fmt.Errorf("%w: %s has bits behind its mask; %s is meant?", ErrRange, prefix, prefix.Masked())
	}
	if prefix.Bits() > longest || prefix.Bits() < shortest {
		return nil, fmt.Errorf("%w: %s: its length must be between /%d and /%d", ErrRange, prefix, shortest, longest)
	}
	size := 1 << (32 - prefix.Bits())
	p := &Pool{
		prefix: prefix, gateway: prefix.Addr().Next(), last: offset(prefix.Addr(), size-2), capacity: size - 3,
		owners: map[netip.Addr]string{}, addresses: map[string]netip.Addr{},
	}
	p.latest = p.gateway
	return p, nil
}

// offset adds to an IPv4 address.
func offset(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		n += int(b[i])
		b[i] = byte(n) //nolint:gosec // the lowest eight bits are meant
		n >>= 8
	}
	return netip.AddrFrom4(b)
}

// Prefix is the range.
func (p *Pool) Prefix() netip.Prefix { return p.prefix }

// Gateway is the address that the node itself has in the range.
func (p *Pool) Gateway() netip.Addr { return p.gateway }

// Free counts the addresses without an owner.
func (p *Pool) Free() int { return p.capacity - len(p.owners) }

// Address gives the address of an owner.
func (p *Pool) Address(owner string) (netip.Addr, bool) {
	a, ok := p.addresses[owner]
	return a, ok
}

// Allocate gives an owner an address, the same one if it has one already. It
// goes round the range: whoever still talks to the former owner of a freed
// address must not find another there at once.
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

// after is the next address to give out, the first one after the last.
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

// Reserve notes an address that an owner has already.
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
	// So that a new agent, too, goes on behind those that were given out last.
	if p.latest.Less(a) {
		p.latest = a
	}
	return nil
}

// Release frees what an owner has, if it has any.
func (p *Pool) Release(owner string) {
	if a, ok := p.addresses[owner]; ok {
		delete(p.owners, a)
		delete(p.addresses, owner)
	}
}
