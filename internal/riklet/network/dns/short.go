package dns

import (
	"context"
	"slices"
	"strings"

	"github.com/miekg/dns"
	"golang.org/x/net/publicsuffix"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/network/netmap"
)

// private are top-level domains that are used within organizations, or by convention (RFC 6761,
// RFC 6762 appendix G, RFC 8375).
var private = []string{"corp", "domain", "home", "internal", "intranet", "invalid", "lan", "local", "localdomain", "localhost", "private", "test"}

// topLevel reports whether a label is a top-level domain that exists outside the cluster.
func topLevel(label string) bool {
	_, icann := publicsuffix.PublicSuffix(label)
	return icann || slices.Contains(private, label)
}

func shortDomain(s *netmap.Snapshot) string {
	if s.Settings.Domain == "" {
		return ""
	}
	return instance.ShortNames + "." + s.Settings.Domain
}

// short answers a short name. If the namespace has the name of a top-level domain, names outside
// the cluster have priority. short denies a name that exists there, and the client's resolver
// continues with it. If no server answers, it is not known whether the name exists, and the client
// gets a failure. On a host without name servers, no outside names exist.
func (s *Server) short(ctx context.Context, w dns.ResponseWriter, q *dns.Msg, snapshot *netmap.Snapshot) *dns.Msg {
	name := strings.TrimSuffix(strings.ToLower(q.Question[0].Name), dns.Fqdn(shortDomain(snapshot)))
	labels := dns.SplitDomainName(name)
	if len(labels) == 0 {
		return describe(snapshot, q, found{exists: true})
	}
	what := look(snapshot, name+dns.Fqdn(snapshot.Settings.Domain))
	if len(labels) == 1 || !what.exists {
		return describe(snapshot, q, found{})
	}
	if topLevel(labels[len(labels)-1]) && len(s.upstream.list()) > 0 && s.serves(snapshot, w.RemoteAddr()) {
		outside := new(dns.Msg).SetQuestion(name, dns.TypeA)
		switch reply := s.upstream.ask(ctx, outside, isTCP(w), clientOf(w.RemoteAddr())); reply.Rcode {
		case dns.RcodeNameError:
		case dns.RcodeSuccess:
			return describe(snapshot, q, found{})
		default:
			return failure(q)
		}
	}
	return describe(snapshot, q, what)
}
