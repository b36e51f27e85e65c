package proxy

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// words are the names of matches and targets in a rule.
var words = regexp.MustCompile(`-m (\S+)|-j ([A-Z]+)( |$)|--reject-with (\S+)|-p (\S+)`)

func vocabulary(in Input) []string {
	all := map[string]bool{}
	for _, table := range Render(in) {
		for _, rules := range table.Chains {
			for _, rule := range rules {
				for _, word := range words.FindAllString(rule, -1) {
					all[strings.TrimSpace(word)] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// TestSampleHasEveryMatchAndTarget compares the sample with the rules of random clusters.
func TestSampleHasEveryMatchAndTarget(t *testing.T) {
	t.Parallel()
	has := vocabulary(Sample())
	for _, word := range []string{"-m conntrack", "-m addrtype", "-j MASQUERADE", "-j DNAT", "-p tcp", "-p udp", "-p sctp"} {
		if !slices.Contains(has, word) {
			t.Errorf("the sample has no rule with %q; it has %q", word, has)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for _, word := range vocabulary(cluster(t)) {
			if !slices.Contains(has, word) {
				t.Fatalf("a cluster has rules with %q, and the sample has none", word)
			}
		}
	})
}
