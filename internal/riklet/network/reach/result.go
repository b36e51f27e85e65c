package reach

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// Interval is the time between two rounds of requests.
	Interval = 5 * time.Second
	// Silence is the time without an answer after which there is a trouble. It is twelve rounds,
	// so that lost packets do not matter, and three times as long as the scheduler takes to
	// detect a lost node.
	Silence = time.Minute
	// eachSide is the number of neighbors on each side of the ring.
	eachSide = 2
)

// neighbors returns the nodes that a node queries: those before and after it on a ring of sorted
// names. Thus a node of a large cluster queries four others and is queried by the same four.
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

// seen is the state of one neighbor. A zero time means never.
type seen struct {
	since           time.Time // when the requests to it started
	answered        time.Time
	receivesNothing time.Time // when it reported that it receives nothing
}

// state is the result of a check.
type state string

const (
	// idle means that there is no node to query.
	idle state = "idle"
	// waiting means that there is no result yet.
	waiting state = "waiting"
	// fine means that packets pass, or that only other nodes receive none.
	fine state = "fine"
	// inbound means that this node receives nothing.
	inbound state = "inbound"
	// outbound means that other nodes' packets arrive, but that nodes which receive packets of
	// others do not answer.
	outbound state = "outbound"
)

// arrivals are the times of received packets from any node: the first after a silence, and the
// last.
type arrivals struct{ first, last time.Time }

// add records one more packet.
func (a *arrivals) add(now time.Time, silence time.Duration) {
	if a.last.IsZero() || now.Sub(a.last) >= silence {
		a.first = now
	}
	a.last = now
}

// validate returns the result of a check. One neighbor that answers is enough: another that does
// not answer has a trouble of its own.
//
// If two nodes cannot reach each other, the one that receives the other's requests is fine. The
// other one reports that it receives nothing, so the path to it is blocked.
//
// Right after a path was opened, requests arrive before replies do. Therefore requests must have
// arrived for as long as a reply may take. A node that reported that it receives nothing has the
// same time.
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
		if !recent(s.receivesNothing) {
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

// unchecked is the trouble of a node that has just started.
const unchecked = "the overlay was not checked yet"

// named returns the names and addresses of nodes for a message.
func named(peers []Peer) string {
	var who []string
	for _, p := range peers {
		who = append(who, fmt.Sprintf("%s (%s)", p.Name, p.Outer))
	}
	return strings.Join(who, ", ")
}

// describe returns a message with what to open and from where.
func describe(s state, port uint16, peers []Peer) string {
	nodes := named(peers)
	switch s {
	case inbound:
		return fmt.Sprintf("no packet of another node's overlay arrives here, and %s did not answer. Next: accept UDP port %d from the addresses "+
			"of all nodes in every firewall of this machine (also in nftables and firewalld) and between the nodes", nodes, port)
	case outbound:
		return fmt.Sprintf("packets of other nodes' overlay arrive here, but this node's do not arrive at %s. Next: let UDP port %d out of this "+
			"machine to the addresses of all nodes, and accept it between the nodes", nodes, port)
	case waiting:
		return fmt.Sprintf(unchecked+": %s did not answer so far over UDP port %d", nodes, port)
	default:
		return ""
	}
}

// describeInstances is describe for packets between instances.
func describeInstances(s state, v View, peers []Peer) string {
	nodes := named(peers)
	accept := fmt.Sprintf("accept what is forwarded from and to %s in every firewall of this machine (also in nftables and firewalld; "+
		"for firewalld: firewall-cmd --permanent --zone=trusted --add-source=%s && firewall-cmd --reload)", v.Cluster, v.Cluster)
	const way = "if the network between the nodes drops addresses of instances, run all nodes with --network=vxlan"
	switch s {
	case inbound:
		return fmt.Sprintf("no packet from instances of other nodes arrives at instances of this node, and %s did not answer: %s; %s", nodes, accept, way)
	case outbound:
		return fmt.Sprintf("packets from instances of other nodes arrive here, but packets from instances of this node do not arrive at instances of %s: %s; %s", nodes, accept, way)
	case waiting:
		return fmt.Sprintf(unchecked+": no answer yet from %s to a check packet between instances", nodes)
	default:
		return ""
	}
}
