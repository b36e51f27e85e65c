package iptables

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
)

// Ruleset is the desired rules, by table ("nat", "filter"). The zero value has no rules.
type Ruleset map[string]*Table

// Table is the desired content of one table.
type Table struct {
	// Jumps lead from the kernel's own chains to rik's, at most one from each. They are the first
	// rules there.
	Jumps []Jump
	// Chains are the rules by the chain's name, in the syntax of iptables after "-A NAME ".
	Chains map[string][]string
}

// Jump leads from a chain of the kernel to one of rik's, for every packet.
type Jump struct{ From, To string }

// Rules counts the rules of all chains.
func (r Ruleset) Rules() int {
	n := 0
	for _, t := range r {
		for _, rules := range t.Chains {
			n += len(rules)
		}
	}
	return n
}

// Chain creates an empty chain in a table, if necessary with the table, and returns the table.
func (r Ruleset) Chain(table, name string) *Table {
	t := r[table]
	if t == nil {
		t = &Table{Chains: map[string][]string{}}
		r[table] = t
	}
	if _, ok := t.Chains[name]; !ok {
		t.Chains[name] = nil
	}
	return t
}

// Add appends a rule to a chain, which it creates if necessary.
func (r Ruleset) Add(table, chain, rule string) {
	t := r.Chain(table, chain)
	t.Chains[chain] = append(t.Chains[chain], rule)
}

// held is what is known about one of rik's chains in the kernel.
type held struct {
	// wanted is the checksum of the rules as they were written. 0 means unknown: the chain must
	// be written again.
	wanted uint64
	rules  int
	// printed is the checksum of the rules as iptables-save prints them, or 0 before the first
	// look. The format differs between versions, so it is compared only with itself.
	printed uint64
	// once is the checksum of the rules before another program changed the chain, and onceAs the
	// one of their printed form. When the chain is restored, its printed form can be compared at
	// once.
	once, onceAs uint64
	// pinned is true if a rule of another program refers to the chain, so that it cannot be
	// deleted.
	pinned bool
}

// jumps are the rules in one of the kernel's chains that lead to rik's.
type jumps struct {
	rules []string // as printed, without "-A CHAIN "
	first bool     // the first of them is the first rule of the chain
}

func (j jumps) onlyTo(to string) bool {
	return len(j.rules) == 1 && j.first && j.rules[0] == "-j "+to
}

// contents is what is known to be in one table.
type contents struct {
	chains map[string]held
	jumps  map[string]jumps // by the kernel's chain
}

func newContents() *contents {
	return &contents{chains: map[string]held{}, jumps: map[string]jumps{}}
}

var seed = maphash.MakeSeed()

// sum returns the checksum of some lines. It is never 0.
func sum(lines []string) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, line := range lines {
		h.WriteString(line)
		h.WriteByte('\n')
	}
	return h.Sum64() | 1
}

// change is the difference between the known and the desired content of one table.
type change struct {
	text  strings.Builder // without "*table" and "COMMIT"; empty: nothing to do
	after *contents
	// write and remove count chains, move counts jumps.
	write, remove, move int
}

// plan compares the known with the desired content. It is pure and does not change its arguments.
func plan(have *contents, want *Table) *change {
	if have == nil {
		have = newContents()
	}
	if want == nil {
		want = &Table{}
	}
	c := &change{after: &contents{chains: make(map[string]held, len(want.Chains)), jumps: make(map[string]jumps, len(want.Jumps))}}
	write, remove := c.chains(have, want)
	if sameJumps(have, want) {
		c.after.jumps = have.jumps
		if len(write) == 0 && len(remove) == 0 {
			return c
		}
	}
	// A chain line with counters creates the chain if it does not exist, and empties it
	// otherwise.
	for _, name := range slices.Concat(write, remove) {
		c.line(":", name, " - [0:0]")
	}
	c.moveJumps(have, want)
	for _, name := range write {
		for _, rule := range want.Chains[name] {
			c.line("-A ", name, " ", rule)
		}
	}
	for _, name := range remove {
		if !have.chains[name].pinned {
			c.line("-X ", name)
		}
	}
	c.write, c.remove = len(write), len(remove)
	return c
}

func (c *change) line(parts ...string) {
	for _, p := range parts {
		c.text.WriteString(p)
	}
	c.text.WriteByte('\n')
}

// chains decides which chains to write and which to remove.
func (c *change) chains(have *contents, want *Table) (write, remove []string) {
	for _, name := range slices.Sorted(maps.Keys(want.Chains)) {
		rules := want.Chains[name]
		s := sum(rules)
		if h, ok := have.chains[name]; ok && h.wanted == s {
			c.after.chains[name] = h
			continue
		}
		write = append(write, name)
		h := held{wanted: s, rules: len(rules), pinned: have.chains[name].pinned}
		if have.chains[name].once == s {
			h.printed = have.chains[name].onceAs
		}
		c.after.chains[name] = h
	}
	empty := sum(nil)
	for _, name := range slices.Sorted(maps.Keys(have.chains)) {
		h := have.chains[name]
		if _, ok := want.Chains[name]; ok {
			continue
		}
		if h.pinned {
			c.after.chains[name] = held{wanted: empty, pinned: true}
			if h.wanted == empty {
				continue
			}
		}
		remove = append(remove, name)
	}
	return write, remove
}

// moveJumps removes every jump that is not as desired, then adds the desired jumps at the front.
func (c *change) moveJumps(have *contents, want *Table) {
	wanted := map[string]string{}
	for _, j := range want.Jumps {
		wanted[j.From] = j.To
	}
	for _, from := range slices.Sorted(maps.Keys(have.jumps)) {
		if to, ok := wanted[from]; ok && have.jumps[from].onlyTo(to) {
			continue
		}
		for _, rule := range have.jumps[from].rules {
			c.line("-D ", from, " ", rule)
			c.move++
		}
	}
	for _, from := range slices.Sorted(maps.Keys(wanted)) {
		to := wanted[from]
		c.after.jumps[from] = jumps{rules: []string{"-j " + to}, first: true}
		if !have.jumps[from].onlyTo(to) {
			c.line("-I ", from, " 1 -j ", to)
			c.move++
		}
	}
}

// sameJumps reports whether exactly the desired jumps exist.
func sameJumps(have *contents, want *Table) bool {
	if len(have.jumps) != len(want.Jumps) {
		return false
	}
	for _, j := range want.Jumps {
		if !have.jumps[j.From].onlyTo(j.To) {
			return false
		}
	}
	return true
}
