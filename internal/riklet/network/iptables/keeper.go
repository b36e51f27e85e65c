package iptables

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
)

// Keeper writes rulesets into the kernel and remembers them, so that the next transaction
// contains only what changed. It is not safe for concurrent use.
type Keeper struct {
	tool   *Tool
	tables map[string]*contents // nil: no look yet
	lines  int                  // number of lines at the last look
	// created is the path of the record, see RecordCreated. settled are the tables and chains that
	// need no look at the kernel anymore: they existed, or are in the record.
	created string
	settled map[place]bool
}

// fewLines can be read in a few milliseconds, so they are read again right after a write. With
// more lines, a rule that another program replaces between a change of its chain and the next
// Look is not noticed.
const fewLines = 2000

// NewKeeper returns a keeper without knowledge of the rules. Its first Apply reads the existing
// rules, writes every chain again and deletes rik's chains that are not desired.
func NewKeeper(tool *Tool) *Keeper { return &Keeper{tool: tool} }

// RecordCreated makes the keeper record in a file which tables and chains of the kernel's it creates,
// so that Tool.RemoveCreated can remove them. The file must not survive a boot, as the tables do not.
func (k *Keeper) RecordCreated(path string) { k.created, k.settled = path, map[place]bool{} }

// Changes describes what an Apply did.
type Changes struct {
	Written, Removed int // chains
	Moved            int // jumps that were moved to the front, or removed
}

// Apply applies the ruleset. It runs iptables-restore once if anything differs from the known
// state, and not at all otherwise. Each table changes as a whole or not at all. If another
// program has changed rik's rules meanwhile and the transaction fails, Apply reads the rules and
// tries once more.
func (k *Keeper) Apply(ctx context.Context, want Ruleset) (Changes, error) {
	if k.tables != nil {
		done, err := k.apply(ctx, want)
		if err == nil || errors.Is(err, ErrUnsupported) || ctx.Err() != nil {
			return done, err
		}
	}
	if _, err := k.Look(ctx); err != nil {
		return Changes{}, err
	}
	return k.apply(ctx, want)
}

func (k *Keeper) apply(ctx context.Context, want Ruleset) (Changes, error) {
	var done Changes
	var text strings.Builder
	after := map[string]*contents{}
	names := slices.AppendSeq(slices.Collect(maps.Keys(k.tables)), maps.Keys(want))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		c := plan(k.tables[name], want[name])
		after[name] = c.after
		if c.text.Len() == 0 {
			continue
		}
		fmt.Fprintf(&text, "*%s\n%sCOMMIT\n", name, c.text.String())
		done.Written += c.write
		done.Removed += c.remove
		done.Moved += c.move
	}
	if text.Len() == 0 {
		return Changes{}, nil
	}
	if err := k.record(want); err != nil {
		return Changes{}, err
	}
	if err := k.tool.write(ctx, []byte(text.String())); err != nil {
		// The tables before the failed one may have changed.
		k.tables = nil
		return Changes{}, fmt.Errorf("writing the firewall rules: %w", err)
	}
	k.tables = after
	if k.lines+want.Rules() <= fewLines {
		// The next Apply repairs what is already lost.
		_, err := k.Look(ctx)
		return done, err
	}
	return done, nil
}

// Look reads the rules and compares them with what was applied. It returns how many chains and
// jumps another program removed, changed or moved. The next Apply repairs them. The first Look of
// a keeper returns 0.
func (k *Keeper) Look(ctx context.Context) (lost int, err error) {
	seen := newReader()
	if err := k.tool.read(ctx, seen.line); err != nil {
		k.tables = nil
		return 0, fmt.Errorf("reading the firewall rules: %w", err)
	}
	seen.finish()
	k.lines = seen.lines
	first := k.tables == nil
	for name := range k.tables {
		if seen.tables[name] == nil {
			seen.tables[name] = newContents()
		}
	}
	before := k.tables
	k.tables = seen.tables
	if first {
		return 0, nil
	}
	for name, now := range k.tables {
		lost += compare(before[name], now)
	}
	return lost, nil
}

// compare fills in what is still known about the existing chains, and counts what has changed.
func compare(before, now *contents) (lost int) {
	if before == nil {
		before = newContents()
	}
	for name, was := range before.chains {
		is, ok := now.chains[name]
		if !ok {
			lost++
			continue
		}
		if is.rules == was.rules && (was.printed == 0 || was.printed == is.printed) {
			is.wanted = was.wanted
		} else {
			lost++
			is.once, is.onceAs = was.wanted, was.printed
		}
		now.chains[name] = is
	}
	for from, was := range before.jumps {
		if is := now.jumps[from]; !is.first || !slices.Equal(is.rules, was.rules) {
			lost++
		}
	}
	return lost
}

// reader parses the output of iptables-save, line by line. It counts and hashes rik's rules, and
// never stores them.
type reader struct {
	tables map[string]*contents
	table  *contents
	kernel map[string]int // the kernel's chains of this table: rules seen so far
	sums   map[string]*maphash.Hash
	lines  int
}

func newReader() *reader { return &reader{tables: map[string]*contents{}} }

func (r *reader) line(line string) {
	r.lines++
	switch {
	case strings.HasPrefix(line, "*"):
		r.finish()
		r.table = newContents()
		r.tables[line[1:]] = r.table
		r.kernel = map[string]int{}
		r.sums = map[string]*maphash.Hash{}
	case r.table == nil:
	case strings.HasPrefix(line, ":"):
		r.chain(line[1:])
	case strings.HasPrefix(line, "-A "):
		if name, rule, ok := strings.Cut(line[3:], " "); ok {
			r.rule(name, rule)
		}
	}
}

// chain parses ":NAME POLICY [packets:bytes]". Only the kernel's chains have a policy.
func (r *reader) chain(line string) {
	name, rest, _ := strings.Cut(line, " ")
	switch {
	case !strings.HasPrefix(rest, "-"):
		r.kernel[name] = 0
	case ours(name):
		h := &maphash.Hash{}
		h.SetSeed(seed)
		r.sums[name] = h
		r.table.chains[name] = held{}
	}
}

func (r *reader) rule(name, rule string) {
	if h, ok := r.sums[name]; ok {
		h.WriteString(rule)
		h.WriteByte('\n')
		c := r.table.chains[name]
		c.rules++
		r.table.chains[name] = c
		return
	}
	before, kernel := r.kernel[name]
	if kernel {
		r.kernel[name]++
	}
	to := target(rule)
	switch {
	case !ours(to):
	case kernel && rule == "-j "+to:
		j := r.table.jumps[name]
		if len(j.rules) == 0 {
			j.first = before == 0
		}
		j.rules = append(j.rules, rule)
		r.table.jumps[name] = j
	default:
		// Another program has a rule that uses one of rik's chains.
		c := r.table.chains[to]
		c.pinned = true
		r.table.chains[to] = c
	}
}

// finish ends a table.
func (r *reader) finish() {
	for name, h := range r.sums {
		c := r.table.chains[name]
		c.printed = h.Sum64() | 1
		r.table.chains[name] = c
	}
	r.sums = nil
}

// target returns the chain or target of a printed rule.
func target(rule string) string {
	fields := strings.Fields(rule)
	for i := len(fields) - 2; i >= 0; i-- {
		if fields[i] == "-j" || fields[i] == "-g" {
			return fields[i+1]
		}
	}
	return ""
}
