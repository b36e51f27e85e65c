package dns

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"rik.dev/rik/internal/riklet/network/netmap"
)

// within reports whether a name belongs to the domain. It returns false before the node knows its
// domain.
func within(name, domain string) bool {
	return domain != "" && dns.IsSubDomain(dns.Fqdn(domain), strings.ToLower(name))
}

// found is the result of a lookup.
type found struct {
	exists    bool
	addresses []netip.Addr
	ports     []dns.SRV
	targets   []netip.Addr // of the ports
}

// answer returns the reply about a name of the cluster. It depends only on its arguments.
func answer(s *netmap.Snapshot, q *dns.Msg) *dns.Msg {
	return describe(s, q, look(s, strings.ToLower(q.Question[0].Name)))
}

// describe returns the reply to a query, from the result of the lookup.
func describe(s *netmap.Snapshot, q *dns.Msg, what found) *dns.Msg {
	reply := new(dns.Msg).SetReply(q)
	reply.Authoritative, reply.RecursionAvailable = true, true
	if opt := q.IsEdns0(); opt != nil {
		reply.SetEdns0(udpSize, opt.Do())
	}
	queryKey := q.Question[0]
	header := dns.RR_Header{Name: queryKey.Name, Class: dns.ClassINET, Ttl: ttl}
	switch queryKey.Qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeANY:
		reply.Answer = addresses(header, queryKey.Qtype, what.addresses)
	case dns.TypeSOA:
		if isApex(queryKey.Name, s.Settings.Domain) {
			reply.Answer = []dns.RR{soa(s.Settings.Domain)}
		}
	case dns.TypeSRV:
		for _, port := range what.ports {
			header.Rrtype = dns.TypeSRV
			port.Hdr = header
			reply.Answer = append(reply.Answer, &port)
		}
		if len(what.ports) > 0 {
			header.Name = what.ports[0].Target
			reply.Extra = append(addresses(header, dns.TypeANY, what.targets), reply.Extra...)
		}
	}
	if !what.exists {
		reply.Rcode = dns.RcodeNameError
	}
	if len(reply.Answer) == 0 {
		// The SOA record sets how long a negative answer may be cached.
		reply.Ns = []dns.RR{soa(s.Settings.Domain)}
	}
	return reply
}

func isApex(name, domain string) bool { return strings.EqualFold(name, dns.Fqdn(domain)) }

func soa(domain string) dns.RR {
	zone := dns.Fqdn(domain)
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
		Ns:  "ns.dns." + zone, Mbox: "hostmaster." + zone, Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
}

func addresses(header dns.RR_Header, kind uint16, all []netip.Addr) []dns.RR {
	var records []dns.RR
	for _, a := range all {
		switch {
		case a.Is4() && kind != dns.TypeAAAA:
			header.Rrtype = dns.TypeA
			records = append(records, &dns.A{Hdr: header, A: a.AsSlice()})
		case a.Is6() && kind != dns.TypeA:
			header.Rrtype = dns.TypeAAAA
			records = append(records, &dns.AAAA{Hdr: header, AAAA: a.AsSlice()})
		}
	}
	return records
}

// look looks up a name, which must be in lower case and within the domain.
func look(s *netmap.Snapshot, name string) found {
	rest := strings.TrimSuffix(name, dns.Fqdn(s.Settings.Domain))
	labels := dns.SplitDomainName(rest)
	if len(labels) == 0 {
		return found{exists: true}
	}
	slices.Reverse(labels)
	if len(labels) == 1 {
		return found{exists: hasNamespace(s, labels[0])}
	}
	key := netmap.ServiceKey{Namespace: labels[0], Workload: labels[1]}
	service, ok := s.Services[key]
	if !ok {
		return found{}
	}
	switch {
	case len(labels) == 2:
		return found{exists: true, addresses: service.Addresses}
	case len(labels) <= 4 && strings.HasPrefix(labels[2], "_"):
		return lookPort(s, service, labels[2], labels[3:])
	case len(labels) == 3:
		return lookInstance(s, key, labels[2])
	}
	return found{}
}

func hasNamespace(s *netmap.Snapshot, namespace string) bool {
	for key := range s.Services {
		if key.Namespace == namespace {
			return true
		}
	}
	return false
}

// lookPort finds a port by its name or number. Without a port, the name means all ports of a
// protocol: it exists, but has no records.
func lookPort(s *netmap.Snapshot, service netmap.Service, protocol string, port []string) found {
	what := found{targets: service.Addresses}
	for _, p := range service.Ports {
		if "_"+strings.ToLower(string(p.Protocol)) != protocol {
			continue
		}
		if len(port) == 0 {
			return found{exists: true}
		}
		number := strconv.Itoa(int(p.Port))
		if port[0] != "_"+number && (p.Name == "" || port[0] != "_"+strings.ToLower(p.Name)) {
			continue
		}
		what.exists = true
		target := service.Key.Workload + "." + service.Key.Namespace + "." + dns.Fqdn(s.Settings.Domain)
		what.ports = append(what.ports, dns.SRV{Weight: 100, Port: p.Port, Target: target})
	}
	return what
}

// lookInstance finds an instance, ready or not. A client that uses its name means that instance,
// and cluster software must find its own members before they are ready.
func lookInstance(s *netmap.Snapshot, key netmap.ServiceKey, name string) found {
	for _, e := range s.Endpoints[key] {
		if e.Name != name {
			continue
		}
		if !e.Address.IsValid() {
			return found{exists: true}
		}
		return found{exists: true, addresses: []netip.Addr{e.Address}}
	}
	return found{}
}
