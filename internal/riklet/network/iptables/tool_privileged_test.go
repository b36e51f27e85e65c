package iptables

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netns"

	"rik.dev/rik/internal/testkit/privileged"
)

// inSpace moves the test to its own network namespace, until it ends.
func inSpace(t *testing.T) {
	t.Helper()
	privileged.Require(t)
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Set(home); err != nil {
			t.Error(err) // the thread stays locked and ends with the test
			return
		}
		_ = home.Close()
		_ = space.Close()
		runtime.UnlockOSThread()
	})
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// saved returns the output of iptables-save for a table, or for all that exist, without times and
// counters.
func saved(t *testing.T, program string, table ...string) string {
	t.Helper()
	var kept strings.Builder
	for _, name := range table {
		table = []string{"-t", name}
	}
	for line := range strings.Lines(command(t, program+"-save", table...)) {
		if !strings.HasPrefix(line, "#") {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " [")
			kept.WriteString(line + "\n")
		}
	}
	return kept.String()
}

func sample() Ruleset {
	r := Ruleset{}
	r.Add("nat", "RIKLET", "-d 10.63.0.0/16 -g RIKLET-V")
	r.Add("nat", "RIKLET-V", "-d 10.63.0.1/32 -p tcp -m tcp --dport 80 -g RIKLET-S")
	r.Add("nat", "RIKLET-S", "-p tcp -m statistic --mode random --probability 0.3333333 -j DNAT --to-destination 10.62.0.2:80")
	r.Add("nat", "RIKLET-S", "-p tcp -j DNAT --to-destination 10.62.0.3:80")
	r["nat"].Jumps = []Jump{{"PREROUTING", "RIKLET"}, {"OUTPUT", "RIKLET"}}
	r.Add("filter", "RIKLET-FORWARD", "-d 10.62.0.0/16 -j ACCEPT")
	r["filter"].Jumps = []Jump{{"FORWARD", "RIKLET-FORWARD"}}
	return r
}

// TestPrivilegedKeeper creates, repeats, changes, loses, and removes rules in both variants, and
// checks the result with the programs.
func TestPrivilegedKeeper(t *testing.T) {
	for _, variant := range []struct {
		name    Variant
		program string
	}{{NFTables, "iptables-nft"}, {Legacy, "iptables-legacy"}} {
		t.Run(string(variant.name), func(t *testing.T) {
			inSpace(t)
			command(t, variant.program, "-A", "FORWARD", "-s", "203.0.113.1/32", "-j", "DROP")
			before := saved(t, variant.program, "filter") + saved(t, variant.program, "nat")
			tool, other, err := Find(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if tool.Variant != variant.name || other == nil || other.Variant == variant.name {
				t.Fatalf("found %v and %v, want %s first", tool, other, variant.name)
			}
			k := NewKeeper(tool)
			apply(t, k, sample(), Changes{Written: 4, Moved: 3})
			made := saved(t, variant.program, "filter") + saved(t, variant.program, "nat")
			apply(t, k, sample(), Changes{})
			looked(t, k, 0)

			changed := sample()
			changed.Add("nat", "RIKLET-V", "-d 10.63.0.2/32 -p tcp -m tcp --dport 80 -g RIKLET-S")
			apply(t, k, changed, Changes{Written: 1})
			looked(t, k, 0)
			apply(t, k, sample(), Changes{Written: 1})
			looked(t, k, 0)

			// Another program flushes one table, and adds a rule before rik's in the other.
			command(t, variant.program, "-t", "nat", "-F")
			command(t, variant.program, "-t", "nat", "-X")
			command(t, variant.program, "-I", "FORWARD", "1", "-s", "203.0.113.2/32", "-j", "DROP")
			looked(t, k, 6)
			apply(t, k, sample(), Changes{Written: 3, Moved: 4})
			command(t, variant.program, "-D", "FORWARD", "-s", "203.0.113.2/32", "-j", "DROP")
			if diff := cmp.Diff(made, saved(t, variant.program, "filter")+saved(t, variant.program, "nat")); diff != "" {
				t.Errorf("before and after the flush (-before +after):\n%s", diff)
			}

			// Without a Look in between, a transaction that fails is retried.
			command(t, variant.program, "-D", "FORWARD", "-j", "RIKLET-FORWARD")
			command(t, variant.program, "-F", "RIKLET-FORWARD")
			command(t, variant.program, "-X", "RIKLET-FORWARD")
			apply(t, k, Ruleset{}, Changes{Removed: 3, Moved: 2})
			for range 2 {
				apply(t, k, Ruleset{}, Changes{})
				apply(t, NewKeeper(tool), Ruleset{}, Changes{})
			}
			if diff := cmp.Diff(before, saved(t, variant.program, "filter")+saved(t, variant.program, "nat")); diff != "" {
				t.Errorf("before and after all (-before +after):\n%s", diff)
			}
		})
	}
}

// TestPrivilegedRemoveCreated removes the tables and chains that a keeper created in nftables, and no
// other ones.
func TestPrivilegedRemoveCreated(t *testing.T) {
	for _, tc := range []struct {
		name string
		// before and during are commands of another program: before rik's rules exist, and after.
		before, during [][]string
		// left are the tables and chains at the end, and line is one that iptables-nft-save prints.
		left []string
		line string
	}{
		{name: "no other program"},
		{
			name:   "an empty table from before",
			before: [][]string{{"-t", "nat", "-A", "OUTPUT", "-j", "ACCEPT"}, {"-t", "nat", "-D", "OUTPUT", "-j", "ACCEPT"}},
			left:   []string{"nat", "nat OUTPUT"},
		},
		{
			name:   "a rule in a created table",
			during: [][]string{{"-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE"}},
			left:   []string{"nat", "nat POSTROUTING"},
			line:   "-A POSTROUTING -j MASQUERADE",
		},
		{
			name:   "a rule in a created chain",
			during: [][]string{{"-A", "FORWARD", "-s", "203.0.113.1/32", "-j", "DROP"}},
			left:   []string{"filter", "filter FORWARD"},
			line:   "-A FORWARD -s 203.0.113.1/32 -j DROP",
		},
		{
			name:   "a policy of a created chain",
			during: [][]string{{"-P", "FORWARD", "DROP"}},
			left:   []string{"filter", "filter FORWARD"},
			line:   ":FORWARD DROP",
		},
		{
			name:   "a chain in a created table",
			during: [][]string{{"-t", "nat", "-N", "OTHER"}},
			left:   []string{"nat", "nat OTHER"},
			line:   ":OTHER -",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inSpace(t)
			for _, args := range tc.before {
				command(t, "iptables-nft", args...)
			}
			tool, err := open(t.Context(), "iptables-nft")
			if err != nil {
				t.Fatal(err)
			}
			record := filepath.Join(t.TempDir(), "tables")
			for range 2 { // a second process takes over
				k := NewKeeper(tool)
				k.RecordCreated(record)
				if _, err := k.Apply(t.Context(), sample()); err != nil {
					t.Fatal(err)
				}
			}
			for _, args := range tc.during {
				command(t, "iptables-nft", args...)
			}
			if _, err := NewKeeper(tool).Apply(t.Context(), Ruleset{}); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := tool.RemoveCreated(record); err != nil {
					t.Fatal(err)
				}
			}
			places, err := existingPlaces()
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for p := range places {
				left = append(left, p.String())
			}
			slices.Sort(left)
			if diff := cmp.Diff(tc.left, left); diff != "" {
				t.Errorf("the tables and chains at the end (-want +got):\n%s", diff)
			}
			if rules := saved(t, "iptables-nft"); !strings.Contains(rules, tc.line) {
				t.Errorf("the rules at the end are without %q:\n%s", tc.line, rules)
			}
			if _, err := os.Stat(record); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the record is still there: %v", err)
			}
		})
	}
}

func apply(t *testing.T, k *Keeper, want Ruleset, done Changes) {
	t.Helper()
	got, err := k.Apply(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if got != done {
		t.Errorf("changes: got %+v, want %+v", got, done)
	}
}

func looked(t *testing.T, k *Keeper, lost int) {
	t.Helper()
	got, err := k.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got != lost {
		t.Errorf("lost: got %d, want %d", got, lost)
	}
}

// TestPrivilegedRestart checks that a new keeper replaces the rules of an earlier one, without a
// moment without rules.
func TestPrivilegedRestart(t *testing.T) {
	inSpace(t)
	tool, _, err := Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old := sample()
	old.Add("nat", "RIKLET-OLD", "-j RETURN")
	old.Add("nat", "RIKLET", "-j RIKLET-OLD")
	apply(t, NewKeeper(tool), old, Changes{Written: 5, Moved: 3})
	k := NewKeeper(tool)
	if got, err := tool.Rules(t.Context(), "RIKLET"); err != nil || len(got) != 2 || got[1] != "-j RIKLET-OLD" {
		t.Fatalf("Rules(RIKLET) = %q, %v, want two, one to RIKLET-OLD", got, err)
	}
	apply(t, k, sample(), Changes{Written: 4, Removed: 1})
	if got := saved(t, "iptables", "nat"); strings.Contains(got, "RIKLET-OLD") || !strings.Contains(got, "RIKLET-S") {
		t.Errorf("rules after a restart:\n%s", got)
	}
}

// TestPrivilegedUnsupported checks that the error about a missing feature contains the rule, and
// that the table is unchanged.
func TestPrivilegedUnsupported(t *testing.T) {
	inSpace(t)
	for _, v := range []Variant{NFTables, Legacy} {
		tool, err := openVariant(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		k := NewKeeper(tool)
		want := Ruleset{}
		want.Add("filter", "RIKLET", "-m nonsense -j ACCEPT")
		_, err = k.Apply(t.Context(), want)
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "-m nonsense -j ACCEPT") {
			t.Errorf("%s: got %v, want the missing feature and the rule", v, err)
		}
		if got := saved(t, map[Variant]string{NFTables: "iptables-nft", Legacy: "iptables-legacy"}[v], "filter"); strings.Contains(got, "RIKLET") {
			t.Errorf("%s: left behind:\n%s", v, got)
		}
	}
}

// openVariant returns the tool of one variant, for a machine that has both.
func openVariant(ctx context.Context, v Variant) (*Tool, error) {
	if v == Legacy {
		return open(ctx, "iptables-legacy")
	}
	return open(ctx, "iptables-nft")
}
