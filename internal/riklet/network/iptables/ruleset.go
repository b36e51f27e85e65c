package iptables

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
)

// Ruleset is what there is to be, by table ("nat", "filter"). The zero value is
// nothing at all.
type Ruleset map[string]*Table

// Table is what there is to be in one table.
type Table struct {
	// Jumps go from the kernel's own chains, at most one from each, and stand first
	// there.
	Jumps []Jump
	// Chains are the rules by the chain's name, written as iptables takes them after
	// "-A NAME ".
	Chains map[string][]string
}

// Jump goes from a chain of the kernel to one of ours, for every packet.
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

// Chain makes an empty chain in a table, both if need be, and returns the table.
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

// Add appends a rule to a chain, which is made if need be.
func (r Ruleset) Add(table, chain, rule string) {
	t := r.Chain(table, chain)
	t.Chains[chain] = append(t.Chains[chain], rule)
}

// held is what is known of one chain of ours in the kernel.
type held struct {
	// wanted is the sum of the rules as they were written; 0: not known, it is to be
	// written again.
	wanted uint64
	rules  int
	// printed is the sum of the rules as the kernel's program prints them; 0 until
	// it was looked at. How it prints them differs from version to version, so that
	// it is compared with itself only.
	printed uint64
	// once are the rules that it had before somebody changed it, onceAs how they
	// were printed: when it is put back, what is printed can be compared at once.
	once, onceAs uint64
	// pinned: a rule of somebody else leads there, so that it cannot be deleted.
	pinned bool
}

// jumps are the rules of one of the kernel's chains that lead to ours.
type jumps struct {
	rules []string // as printed, without "-A CHAIN "
	first bool     // the first of them is the first of the chain
}

func (j jumps) are(to string) bool {
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

// sum is never 0.
func sum(lines []string) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, line := range lines {
		h.WriteString(line)
		h.WriteByte('\n')
	}
	return h.Sum64() | 1
}

// change is what brings one table from what is known to what is wanted.
type change struct {
	text  strings.Builder // without "*table" and "COMMIT"; empty: nothing to do
	after *contents
	// write and remove count chains, move the jumps.
	write, remove, move int
}

// plan compares. It is pure; nothing it is given is changed.
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
	// A chain that is named with its counters is made when it is not there and
	// emptied when it is.
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

// chains sorts out which are to be written and which are to go.
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

// moveJumps takes away every jump that is not as wanted, then puts the wanted in
// front.
func (c *change) moveJumps(have *contents, want *Table) {
	wanted := map[string]string{}
	for _, j := range want.Jumps {
		wanted[j.From] = j.To
	}
	for _, from := range slices.Sorted(maps.Keys(have.jumps)) {
		if to, ok := wanted[from]; ok && have.jumps[from].are(to) {
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
		if !have.jumps[from].are(to) {
			c.line("-I ", from, " 1 -j ", to)
			c.move++
		}
	}
}

// sameJumps says whether exactly the wanted jumps are there.
func sameJumps(have *contents, want *Table) bool {
	if len(have.jumps) != len(want.Jumps) {
		return false
	}
	for _, j := range want.Jumps {
		if !have.jumps[j.From].are(j.To) {
			return false
		}
	}
	return true
}
