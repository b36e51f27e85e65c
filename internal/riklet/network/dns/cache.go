package dns

import (
	"strings"
	"time"

	"github.com/miekg/dns"
	"k8s.io/utils/lru"
)

const (
	// An answer is kept for as long as it says, and maxAge at most, as CoreDNS does in
	// Kubernetes.
	maxAge = 30 * time.Second
	// maxCached answers of maxCachedSize bytes are kept: 8 MiB.
	maxCached     = 4096
	maxCachedSize = 2048
)

// question is what clients can ask alike.
type question struct {
	name        string // in lower case
	kind, class uint16
	dnssec      bool // DNSSEC records are wanted
	unchecked   bool // the server is not to check them
	tcp         bool
}

func questionOf(q *dns.Msg, tcp bool) question {
	asked := q.Question[0]
	key := question{name: strings.ToLower(asked.Name), kind: asked.Qtype, class: asked.Qclass, unchecked: q.CheckingDisabled, tcp: tcp}
	if opt := q.IsEdns0(); opt != nil {
		key.dnssec = opt.Do()
	}
	return key
}

// message is the question as servers are asked: nothing else of a client's message is passed
// on, for the answer is everyone's.
func (k question) message() *dns.Msg {
	m := new(dns.Msg).SetQuestion(k.name, k.kind)
	m.Question[0].Qclass, m.CheckingDisabled = k.class, k.unchecked
	return m.SetEdns0(udpSize, k.dnssec)
}

// cache keeps the answers of servers. It is safe for concurrent use.
type cache struct{ entries *lru.Cache }

type cached struct {
	packed      []byte
	from, until time.Time
}

func newCache() *cache { return &cache{lru.New(maxCached)} }

func (c *cache) clear() { c.entries.Clear() }

// put keeps an answer, if it may be kept.
func (c *cache) put(key question, reply *dns.Msg, now time.Time) {
	age := ageOf(reply)
	if age <= 0 || reply.Truncated {
		return
	}
	packed, err := reply.Pack()
	if err != nil || len(packed) > maxCachedSize {
		return
	}
	key.tcp = false // a whole answer is one for both
	c.entries.Add(key, cached{packed, now, now.Add(age)})
}

// get gives an answer of which the caller may change everything; nil when there is none.
func (c *cache) get(key question, now time.Time) *dns.Msg {
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

// ageOf says for how long an answer may be kept. "No" is kept for as long as the zone's SOA
// says (RFC 2308), and not without one.
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
