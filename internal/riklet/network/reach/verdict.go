package reach

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// Interval is the time between two rounds of questions.
	Interval = 5 * time.Second
	// Silence without an answer is a trouble. It is twelve rounds, so that lost packets do not
	// count, and three times as long as the scheduler takes to notice that a node is gone.
	Silence = time.Minute
	// each side of the ring has this many neighbors.
	eachSide = 2
)

// neighbors chooses whom a node asks: those before and after it on a ring of sorted names. So
// a node of a large cluster asks four others and is asked by the same four.
func neighbors(self string, names []string) []string {
	names = slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(n string) bool { return n == self })
	if len(names) <= 2*eachSide {
		return names
	}
	at, _ := slices.BinarySearch(names, self)
	var chosen []string
	for i := -eachSide; i < eachSide; i++ {
		chosen = append(chosen, names[(at+i+len(names))%len(names)])
	}
	slices.Sort(chosen)
	return chosen
}

// seen is what one neighbor was seen to do. Zero times: never.
type seen struct {
	since    time.Time // it is asked
	answered time.Time
	deaf     time.Time // it said that it receives nothing from anybody
}

// state is where a check stands.
type state string

const (
	// idle: there is nobody to ask.
	idle state = "idle"
	// waiting: it is too early to say.
	waiting state = "waiting"
	// fine: packets pass, or it is the others that receive none.
	fine state = "fine"
	// inbound: nothing arrives from anybody.
	inbound state = "inbound"
	// outbound: packets of others arrive, and none is answered by those that receive others'.
	outbound state = "outbound"
)

// arrivals are when anything came from any node: the first after a silence, and the last.
type arrivals struct{ first, last time.Time }

// add notes one more.
func (a *arrivals) add(now time.Time, silence time.Duration) {
	if a.last.IsZero() || now.Sub(a.last) >= silence {
		a.first = now
	}
	a.last = now
}

// validate says what the neighbors show. One neighbor that answers is enough: another that does not has a trouble of its own.
//
// Of two nodes that do not reach each other, the one that receives the other's questions is
// fine: the other one says that it receives nothing, so the way to it is closed.
//
// Right after a way was opened, packets come before answers do. So those must have come for
// as long as an answer may take, and who said that it receives nothing has as long, too.
func validate(all map[string]*seen, came arrivals, now time.Time, silence time.Duration) state {
	recent := func(t time.Time) bool { return !t.IsZero() && now.Sub(t) < silence }
	asked, able := 0, 0
	for _, s := range all {
		if recent(s.answered) {
			return fine
		}
		if now.Sub(s.since) < silence {
			continue
		}
		asked++
		if !recent(s.deaf) {
			able++
		}
	}
	switch {
	case len(all) == 0:
		return idle
	case asked == 0:
		return waiting
	case !recent(came.last):
		return inbound
	case able == 0:
		return fine
	case recent(came.first):
		return waiting
	default:
		return outbound
	}
}

// memory is what outlives the agent.
type memory struct {
	// Checked: the node was fine once. Before that it waits for an answer, so that a node that
	// cannot be reached gets no work when it joins.
	Checked bool
	// Trouble is the last one, empty for none.
	Trouble string
}

// unchecked is the trouble of a node that has just begun.
const unchecked = "the overlay was not checked yet"

// next follows a state. While it is not known yet, a node stays what it was.
func (m memory) next(s state, message string) memory {
	switch {
	case s == fine || s == idle:
		return memory{Checked: true}
	case s == waiting && (m.Checked || m.Trouble != "" && m.Trouble != unchecked):
		return m
	}
	return memory{Checked: m.Checked, Trouble: message}
}

// describe says what to open, and from where.
func describe(s state, port uint16, peers []Peer) string {
	var who []string
	for _, p := range peers {
		who = append(who, fmt.Sprintf("%s (%s)", p.Name, p.Outer))
	}
	nodes := strings.Join(who, ", ")
	switch s {
	case inbound:
		return fmt.Sprintf("no packet of another node's overlay arrives here, nor any answer of %s: accept UDP port %d from the addresses "+
			"of all nodes in every firewall of this machine (nftables and firewalld besides iptables) and on the way to it", nodes, port)
	case outbound:
		return fmt.Sprintf("packets of other nodes' overlay arrive here, but this node's do not arrive at %s: let UDP port %d out of this "+
			"machine to the addresses of all nodes, and accept it from this node's address on the way", nodes, port)
	case waiting:
		return fmt.Sprintf(unchecked+": %s did not answer so far over UDP port %d", nodes, port)
	default:
		return ""
	}
}
