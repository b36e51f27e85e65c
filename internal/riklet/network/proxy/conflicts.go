package proxy

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/network/netmap"
)

// Conflict is a port that both a service and a process of this node use.
type Conflict struct {
	HostPort
	Service netmap.ServiceKey
	// Served is true if the service has the port. Otherwise the process keeps it, and the service
	// cannot be reached at that port of this node.
	Served bool
}

// String returns a description for messages.
func (c Conflict) String() string {
	what := "a process of the machine uses it"
	if c.Served {
		what = "a process of the machine listens on it, but connections go to the workload"
	}
	return fmt.Sprintf("%s %d of %s: %s", c.Protocol, c.Port, c.Service, what)
}

// reach is the set of node addresses at which a service has a port.
type reach int

const (
	addReject reach = iota
	exceptLoopback
	everywhere
)

// reserved are the ports that services have on this node.
type reserved map[HostPort]reach

// reservedBy returns the node ports that services reserve.
func reservedBy(all []servicePort) reserved {
	r := reserved{}
	for i := range all {
		if f := &all[i]; f.node {
			r[HostPort{f.protocol, f.port}] = everywhere
			if f.exceptLoopback {
				r[HostPort{f.protocol, f.port}] = exceptLoopback
			}
		}
	}
	return r
}

// onePort matches a rule for a single port in the trees of ports.
var onePort = regexp.MustCompile(`(^| )-p (tcp|udp|sctp) .*--dport (\d+)( |$)`)

// reservedIn parses the ports that an earlier process reserved from its printed rules.
func reservedIn(rules []string) reserved {
	r := reserved{}
	for _, rule := range rules {
		m := onePort.FindStringSubmatch(rule)
		if m == nil {
			continue
		}
		n, err := strconv.ParseUint(m[3], 10, 16)
		if err != nil {
			continue
		}
		p := HostPort{rikv1alpha1.Protocol(strings.ToUpper(m[2])), uint16(n)}
		if strings.Contains(rule, "-d "+loopback+" ") {
			r[p] = exceptLoopback
		} else if r[p] == addReject {
			r[p] = everywhere
		}
	}
	return r
}

// settle decides which listeners keep their ports. A privileged listener always does. Other
// listeners do only if they were there before the service. A listener at loopback addresses keeps
// the port only there. The first user of a port keeps it: a process cannot take a port from a
// service, and a service cannot take one from a process.
func (r reserved) settle(listeners []Listener) (host, atLoopback []HostPort, lost map[HostPort]bool) {
	lost = map[HostPort]bool{}
	for _, l := range listeners {
		has := r[l.HostPort]
		switch {
		case l.Loopback && (l.Privileged || has != everywhere):
			atLoopback = append(atLoopback, l.HostPort)
		case l.Loopback:
		case l.Privileged || has == addReject:
			host = append(host, l.HostPort)
		default:
			lost[l.HostPort] = true
		}
	}
	return host, atLoopback, lost
}

// conflicts lists the ports of services that a process of the node also uses, in a fixed order.
func conflicts(in Input, lost map[HostPort]bool) []Conflict {
	var all []Conflict
	c := collector{in: in}
	for key, s := range in.Snapshot.Services {
		for _, p := range s.Ports {
			at := HostPort{p.Protocol, p.Port}
			kept := slices.Contains(in.Facts.HostPorts, at)
			if ofNodes(p) && (kept || lost[at]) && c.placed(key, p) {
				all = append(all, Conflict{HostPort: at, Service: key, Served: !kept})
			}
		}
	}
	slices.SortFunc(all, func(a, b Conflict) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Service.Namespace, b.Service.Namespace), cmp.Compare(a.Service.Workload, b.Service.Workload))
	})
	return slices.Compact(all)
}
