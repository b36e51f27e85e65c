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

// Keeper brings rulesets into the kernel and remembers what it brought, so that
// the next transaction holds only what changed. It is not for more than one caller
// at a time.
type Keeper struct {
	tool   *Tool
	tables map[string]*contents // nil: not looked yet
	lines  int                  // that there were to read the last time
}

// fewLines are read in a few milliseconds, so that what was written is looked at
// right away. Where there are more, a rule that somebody exchanges for another
// between a change of its chain and the next Look is not noticed.
const fewLines = 2000

// NewKeeper gives a keeper that knows nothing: its first Apply looks at what is
// there, writes every chain anew and deletes those of ours that are not wanted.
func NewKeeper(tool *Tool) *Keeper { return &Keeper{tool: tool} }

// Changes says what an Apply did.
type Changes struct {
	Written, Removed int // chains
	Moved            int // jumps that were put first, or taken away
}

// Apply brings the ruleset in, with one run of iptables-restore when anything
// differs from what is known to be there and none otherwise. Each table changes as
// a whole or not at all. When somebody has changed ours meanwhile, so that the
// transaction does not fit, it looks and tries once more.
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
	if err := k.tool.write(ctx, []byte(text.String())); err != nil {
		// The tables before the one that failed may have changed.
		k.tables = nil
		return Changes{}, fmt.Errorf("changing the machine's rules: %w", err)
	}
	k.tables = after
	if k.lines+want.Rules() <= fewLines {
		// What is lost already is put right by the next Apply.
		_, err := k.Look(ctx)
		return done, err
	}
	return done, nil
}

// Look reads what is there and compares it with what was brought in. It says how
// many chains and jumps were lost, altered or moved by somebody else; the next
// Apply puts them right. The first Look of a keeper finds nothing lost.
func (k *Keeper) Look(ctx context.Context) (lost int, err error) {
	seen := newReader()
	if err := k.tool.read(ctx, seen.line); err != nil {
		k.tables = nil
		return 0, fmt.Errorf("reading the machine's rules: %w", err)
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

// compare fills in what is still known of the chains that are there, and counts
// what is not as it was.
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

// reader takes what iptables-save prints, line by line: the rules of ours are
// counted and summed, never stored.
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

// chain reads ":NAME POLICY [packets:bytes]"; only the kernel's have a policy.
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
		// Somebody wrote a rule of their own that uses a chain of ours.
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

// target is the chain or target that a printed rule leads to.
func target(rule string) string {
	fields := strings.Fields(rule)
	for i := len(fields) - 2; i >= 0; i-- {
		if fields[i] == "-j" || fields[i] == "-g" {
			return fields[i+1]
		}
	}
	return ""
}
