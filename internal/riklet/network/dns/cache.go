package dns

import (
	"strings"
	"time"

	"github.com/miekg/dns"
	"k8s.io/utils/lru"
)

const (
	// maxAge bounds how long an answer is cached. An answer is cached for its TTL, but at most
	// for maxAge, as CoreDNS does in Kubernetes.
	maxAge = 30 * time.Second
	// The cache has at most maxCached answers of at most maxCachedSize bytes: 8 MiB.
	maxCached     = 4096
	maxCachedSize = 2048
)

// queryKey is the part of a query that determines the answer.
type queryKey struct {
	name        string // in lower case
	kind, class uint16
	dnssec      bool // DNSSEC records are requested
	unchecked   bool // the server must not validate them
	tcp         bool
}

func keyOf(q *dns.Msg, tcp bool) queryKey {
	asked := q.Question[0]
	key := queryKey{name: strings.ToLower(asked.Name), kind: asked.Qtype, class: asked.Qclass, unchecked: q.CheckingDisabled, tcp: tcp}
	if opt := q.IsEdns0(); opt != nil {
		key.dnssec = opt.Do()
	}
	return key
}

// message returns the query for the servers. It contains nothing else from a client's message,
// because the answer is shared by all clients.
func (k queryKey) message() *dns.Msg {
	m := new(dns.Msg).SetQuestion(k.name, k.kind)
	m.Question[0].Qclass, m.CheckingDisabled = k.class, k.unchecked
	return m.SetEdns0(udpSize, k.dnssec)
}

// cache stores the answers of servers. It is safe for concurrent use.
type cache struct{ entries *lru.Cache }

type cached struct {
	packed      []byte
	from, until time.Time
}

func newCache() *cache { return &cache{lru.New(maxCached)} }

func (c *cache) clear() { c.entries.Clear() }

// put stores an answer if it may be cached.
func (c *cache) put(key queryKey, reply *dns.Msg, now time.Time) {
	age := ageOf(reply)
	if age <= 0 || reply.Truncated {
		return
	}
	packed, err := reply.Pack()
	if err != nil || len(packed) > maxCachedSize {
		return
	}
	key.tcp = false // a complete answer serves both protocols
	c.entries.Add(key, cached{packed, now, now.Add(age)})
}

// get returns a copy of an answer, which the caller may change, or nil if there is none.
func (c *cache) get(key queryKey, now time.Time) *dns.Msg {
	key.tcp = false
	found, ok := c.entries.Get(key)
	if !ok {
		return nil
	}
	kept := found.(cached) //nolint:forcetypeassert // nothing else is put there
	reply := new(dns.Msg)
	if !now.Before(kept.until) || reply.Unpack(kept.packed) != nil {
		c.entries.Remove(key)
		return nil
	}
	passed := uint32(now.Sub(kept.from) / time.Second)
	for _, section := range [][]dns.RR{reply.Answer, reply.Ns, reply.Extra} {
		for _, r := range section {
			if h := r.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl -= min(h.Ttl, passed)
			}
		}
	}
	return reply
}

// ageOf returns how long an answer may be cached. A negative answer is cached for the time in the
// zone's SOA record (RFC 2308), and not at all without one.
func ageOf(reply *dns.Msg) time.Duration {
	if reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError {
		return 0
	}
	least, known := uint32(maxAge/time.Second), len(reply.Answer) > 0
	for _, section := range [][]dns.RR{reply.Answer, reply.Ns} {
		for _, r := range section {
			least = min(least, r.Header().Ttl)
			if zone, ok := r.(*dns.SOA); ok {
				least, known = min(least, zone.Minttl), true
			}
		}
	}
	if !known {
		return 0
	}
	return time.Duration(least) * time.Second
}
