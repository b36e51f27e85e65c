package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"rik.dev/rik/internal/riklet/network/iptables"
)

// packet is the first packet of a connection.
type packet struct {
	from, to netip.Addr
	protocol string
	port     int
	local    bool // to is an address of the node
	state    string
	in       string // link
	marked   bool
}

// outcome is the effect of the rules on a packet: the probability of each target, and the number of
// rules passed in the worst case.
type outcome struct {
	probability map[string]float64 // "DNAT 10.62.1.2:80", "REJECT", "ACCEPT"...; "" is none
	rules       int
	depth       int
}

// simulate sends a packet through a chain, as the kernel does.
func simulate(t testing.TB, table *iptables.Table, chain string, p packet) outcome {
	t.Helper()
	o := outcome{probability: map[string]float64{}}
	o.probability[""] = o.walk(t, table, chain, p, 1, 0, 1)
	return o
}

// walk returns the probability of a return from the chain.
func (o *outcome) walk(t testing.TB, table *iptables.Table, chain string, p packet, probability float64, passed, depth int) float64 {
	t.Helper()
	o.depth = max(o.depth, depth)
	rules, ok := table.Chains[chain]
	if !ok {
		t.Fatalf("a rule leads to chain %q, which does not exist", chain)
	}
	back := 0.0
	for _, rule := range rules {
		passed++
		o.rules = max(o.rules, passed)
		m := parse(t, rule)
		chance := m.matches(p)
		if chance == 0 {
			continue
		}
		taken := probability * chance
		probability -= taken
		switch {
		case m.how == "-g":
			back += o.walk(t, table, m.target, p, taken, passed, depth+1)
		case strings.HasPrefix(m.target, "RIKLET"):
			probability += o.walk(t, table, m.target, p, taken, passed, depth+1)
		case m.target == "RETURN":
			back += taken
		case m.target == "CONNMARK":
			o.probability["marked"] += taken
			probability += taken
		default:
			o.probability[strings.TrimSpace(m.target+" "+m.argument)] += taken
		}
	}
	return back + probability
}

// rule is a parsed rule. The simulation fails on an unknown match, so that every match is tested.
type rule struct {
	conditions            []func(packet) bool
	chance                float64
	how, target, argument string
}

func (r rule) matches(p packet) float64 {
	for _, c := range r.conditions {
		if !c(p) {
			return 0
		}
	}
	return r.chance
}

// parsed caches rules by their text, because each packet meets most of them.
var parsed sync.Map

func parse(t testing.TB, text string) rule {
	if known, ok := parsed.Load(text); ok {
		return known.(rule)
	}
	t.Helper()
	r := rule{chance: 1}
	words := strings.Fields(text)
	not := false
	for i := 0; i < len(words); i++ {
		word, next := words[i], ""
		if i+1 < len(words) {
			next = words[i+1]
		}
		if word == "!" {
			not = true
			continue
		}
		if word == "--comment" { // quoted, with blanks
			for i++; !strings.HasSuffix(words[i], `"`); i++ {
			}
			continue
		}
		condition, known := parseMatch(t, word, next)
		if condition != nil {
			negated := not
			r.conditions = append(r.conditions, func(p packet) bool { return condition(p) != negated })
			not = false
		}
		switch {
		case known:
		case word == "--probability":
			r.chance, _ = strconv.ParseFloat(next, 64)
		case word == "-j" || word == "-g":
			r.how, r.target = word, next
		case word == "--to-destination" || word == "--to-source" || word == "--set-xmark" || word == "--reject-with":
			r.argument = next
		default:
			t.Fatalf("the simulation does not know %q in %q", word, text)
		}
		i++
	}
	if r.target == "" {
		t.Fatalf("rule %q leads nowhere", text)
	}
	parsed.Store(text, r)
	return r
}

// parseMatch parses the conditions of a rule.
func parseMatch(t testing.TB, word, next string) (condition func(packet) bool, known bool) {
	switch word {
	case "-m", "--mode":
		return nil, slices.Contains([]string{"tcp", "udp", "sctp", "addrtype", "statistic", "conntrack", "connmark", "random", "comment"}, next)
	case "-s", "-d":
		prefix, err := netip.ParsePrefix(next)
		if err != nil {
			t.Fatal(err)
		}
		return func(p packet) bool {
			if word == "-s" {
				return prefix.Contains(p.from)
			}
			return prefix.Contains(p.to)
		}, true
	case "-p":
		return func(p packet) bool { return p.protocol == next }, true
	case "-i", "-o":
		return func(p packet) bool { return p.in == next }, true
	case "--dport":
		low, high, ok := strings.Cut(next, ":")
		if !ok {
			high = low
		}
		from, err := strconv.Atoi(low)
		to, err2 := strconv.Atoi(high)
		if err != nil || err2 != nil || to > 65535 {
			t.Fatalf("bad port %q", next)
		}
		return func(p packet) bool { return from <= p.port && p.port <= to }, true
	case "--dst-type":
		return func(p packet) bool { return p.local }, next == "LOCAL"
	case "--src-type": // a packet without an input link is the node's own
		return func(p packet) bool { return p.in == "" || p.in == "lo" }, next == "LOCAL"
	case "--ctstate":
		return func(p packet) bool { return slices.Contains(strings.Split(next, ","), p.state) }, true
	case "--mark":
		return func(p packet) bool { return p.marked }, next == mark
	}
	return nil, false
}

// check checks the properties that every ruleset must have.
func check(t testing.TB, rules iptables.Ruleset) {
	t.Helper()
	for name, table := range rules {
		used := map[string]bool{}
		for _, j := range table.Jumps {
			used[j.To] = true
		}
		for chain, lines := range table.Chains {
			for _, line := range lines {
				r := parse(t, line)
				if strings.HasPrefix(r.target, "RIKLET") {
					used[r.target] = true
				}
			}
			if len(chain) > 28 {
				t.Errorf("chain %q has %d characters, the kernel takes 28", chain, len(chain))
			}
			if chain != "RIKLET" && !strings.HasPrefix(chain, "RIKLET-") {
				t.Errorf("chain %q of table %s is not ours by its name", chain, name)
			}
		}
		for chain := range used {
			if _, ok := table.Chains[chain]; !ok {
				t.Errorf("table %s has no chain %q, which is used", name, chain)
			}
		}
		for chain := range table.Chains {
			if !used[chain] {
				t.Errorf("chain %q of table %s is unused", chain, name)
			}
		}
	}
}

func dnat(to string, port uint16) string { return fmt.Sprintf("DNAT %s:%d", to, port) }
