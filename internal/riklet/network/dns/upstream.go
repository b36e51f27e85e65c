package dns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// perQuery bounds the wait for other servers. Clients retry after 5 s.
	perQuery = 4500 * time.Millisecond
	// minAttempts is the minimum number of attempts for a query, with one server or several.
	minAttempts = 3
	// A server that does not answer is tried after the others for firstPause. The pause doubles
	// each time it fails again, up to maxPause.
	firstPause = 2 * time.Second
	maxPause   = 30 * time.Second
	// lookInterval is the shortest time between two reads of the host's file.
	lookInterval = 5 * time.Second
)

// clientPort is where clients send queries. The node's rules redirect it to this server.
const clientPort = 53

var errNoServer = errors.New("the host has no name server")

// upstream forwards queries to the host's name servers, with a cache.
type upstream struct {
	path   string
	port   string         // empty: 53, such a file has no other
	own    netip.AddrPort // never queried, nor port 53 there: it leads to this server
	slots  *fairQueue     // of queries to the servers
	waits  *fairQueue     // of queries that wait for an answer, including one under way
	cache  *cache
	logger *slog.Logger

	mu sync.Mutex
	// The fields below are guarded by mu.
	looked       time.Time
	changed      time.Time // modification time of the file
	servers      []string
	unresponsive map[string]backoff
	flights      map[queryKey]*flight
}

// backoff is the state of a server that did not answer.
type backoff struct {
	times int
	until time.Time
	tried bool // one query tries it
}

// flight is a query to the servers, shared by all clients that send it meanwhile.
type flight struct {
	done  chan struct{} // closed when reply is set
	reply *dns.Msg      // nil: no answer
}

func newUpstream(cfg Config, own netip.AddrPort) *upstream {
	return &upstream{
		path: cfg.Resolver, own: own, slots: newFairQueue(maxForwards), waits: newFairQueue(maxWaiting), cache: newCache(), logger: cfg.Logger,
		unresponsive: map[string]backoff{}, flights: map[queryKey]*flight{},
	}
}

// ask answers a client's query from the cache, or forwards it. If no server answers, the answer
// is a failure.
func (u *upstream) ask(ctx context.Context, q *dns.Msg, tcp bool, client netip.Addr) *dns.Msg {
	key := keyOf(q, tcp)
	if reply := u.cache.get(key, time.Now()); reply != nil {
		return replyTo(q, reply)
	}
	if !u.waits.acquire(client) {
		return failure(q)
	}
	defer u.waits.release(client)
	f := u.join(ctx, key, client)
	if f == nil {
		return failure(q)
	}
	select {
	case <-ctx.Done():
		return failure(q)
	case <-f.done:
	}
	if f.reply == nil {
		return failure(q)
	}
	return replyTo(q, f.reply.Copy())
}

// replyTo adapts a server's answer to a client's query.
func replyTo(q, reply *dns.Msg) *dns.Msg {
	reply.Id, reply.Question, reply.RecursionDesired, reply.CheckingDisabled = q.Id, q.Question, q.RecursionDesired, q.CheckingDisabled
	reply.Extra = slices.DeleteFunc(reply.Extra, func(r dns.RR) bool { return r.Header().Rrtype == dns.TypeOPT })
	if opt := q.IsEdns0(); opt != nil {
		reply.SetEdns0(udpSize, opt.Do())
	}
	return reply
}

func failure(q *dns.Msg) *dns.Msg {
	reply := new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	reply.RecursionAvailable = true
	return reply
}

// join returns the flight of a query: the one under way, or a new one. It returns nil if the
// client has used up its share.
func (u *upstream) join(ctx context.Context, key queryKey, client netip.Addr) *flight {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f, ok := u.flights[key]; ok {
		return f
	}
	if !u.slots.acquire(client) {
		return nil
	}
	f := &flight{done: make(chan struct{})}
	u.flights[key] = f
	go func() {
		defer u.slots.release(client)
		reply, err := u.exchange(ctx, key)
		if err != nil {
			u.logger.Debug("name server does not answer", "name", key.name, "err", err)
		} else {
			u.cache.put(key, reply, time.Now())
		}
		u.mu.Lock()
		delete(u.flights, key)
		u.mu.Unlock()
		f.reply = reply
		close(f.done)
	}()
	return f
}

// outcome is the result of one attempt.
type outcome struct {
	server string
	reply  *dns.Msg // nil if it did not answer
	err    error
}

// isAnswer reports whether the reply is a real answer, not a server failure or a refusal.
func (o outcome) isAnswer() bool {
	return o.reply != nil && o.reply.Rcode != dns.RcodeServerFailure && o.reply.Rcode != dns.RcodeRefused
}

// exchange tries one server after the other, repeatedly. Earlier attempts stay open while later
// ones run. The first useful answer counts.
func (u *upstream) exchange(ctx context.Context, key queryKey) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, perQuery, errors.New("no name server answered in time"))
	defer cancel()
	servers := u.order(time.Now())
	if len(servers) == 0 {
		return nil, errNoServer
	}
	attempts := attemptsAt(servers)
	interval := perQuery / time.Duration(len(attempts)+1)
	outcomes := make(chan outcome, len(attempts))
	next := time.NewTimer(0)
	defer next.Stop()
	var last error
	open := map[string]int{}
	for made, running := 0, 0; ; {
		select {
		case <-ctx.Done():
			u.failed(open)
			return nil, context.Cause(ctx)
		case <-next.C:
			if made == len(attempts) {
				continue
			}
			u.failed(open) // they had their time, and may answer yet
			server := attempts[made]
			go func() { outcomes <- u.attempt(ctx, key, server) }()
			open[server]++
			made, running = made+1, running+1
			next.Reset(interval)
		case o := <-outcomes:
			running--
			open[o.server]--
			switch {
			case o.isAnswer():
				u.answered(o.server)
				return o.reply, nil
			case o.reply != nil: // it would answer the same again
				u.answered(o.server)
				attempts = append(attempts[:made:made], slices.DeleteFunc(attempts[made:], func(s string) bool { return s == o.server })...)
			default:
				u.failed(map[string]int{o.server: 1})
			}
			last = o.err
			if made == len(attempts) && running == 0 {
				return nil, last
			}
			if made < len(servers) && made < len(attempts) {
				next.Reset(0) // another one
			}
		}
	}
}

// attemptsAt lists the servers in the order of the attempts: each server twice, and a single one
// more often.
func attemptsAt(servers []string) []string {
	var all []string
	for len(all) < max(minAttempts, 2*len(servers)) {
		all = append(all, servers...)
	}
	return all
}

// attempt queries one server once. An observer of one query cannot predict the next.
func (u *upstream) attempt(ctx context.Context, key queryKey, server string) outcome {
	client := &dns.Client{Net: "udp", Timeout: perQuery, UDPSize: dns.MaxMsgSize}
	if key.tcp {
		client.Net = "tcp"
	}
	reply, _, err := client.ExchangeContext(ctx, key.message(), server)
	if err != nil {
		return outcome{server: server, err: err}
	}
	o := outcome{server: server, reply: reply}
	if !o.isAnswer() {
		o.err = errors.New(server + " answered " + dns.RcodeToString[reply.Rcode])
	}
	return o
}

// order returns the servers, silent ones last. After its pause, a silent server is tried by one
// query at a time.
func (u *upstream) order(now time.Time) []string {
	servers := slices.Clone(u.list())
	u.mu.Lock()
	defer u.mu.Unlock()
	last := map[string]int{}
	for _, server := range servers {
		s, unresponsive := u.unresponsive[server]
		switch {
		case !unresponsive:
		case now.Before(s.until):
			last[server] = 1
		default:
			s.until, s.tried = now.Add(firstPause), true
			u.unresponsive[server] = s
		}
	}
	slices.SortStableFunc(servers, func(a, b string) int { return last[a] - last[b] })
	return servers
}

// failed records the servers with an unanswered attempt. It counts once for all queries that wait
// at the same time.
func (u *upstream) failed(open map[string]int) {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	for server, n := range open {
		s := u.unresponsive[server]
		if n <= 0 || now.Before(s.until) && !s.tried {
			continue
		}
		if s.times == 0 {
			u.logger.Warn("a name server of the host does not answer; queries go to the others first", "server", server)
		}
		s.until = now.Add(min(firstPause<<min(s.times, 8), maxPause))
		s.times++
		s.tried = false
		u.unresponsive[server] = s
	}
}

func (u *upstream) answered(server string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, was := u.unresponsive[server]; was {
		delete(u.unresponsive, server)
		u.logger.Info("a name server of the host answers again", "server", server)
	}
}

// list reads the host's file again if it has changed.
func (u *upstream) list() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if now.Sub(u.looked) < lookInterval {
		return u.servers
	}
	u.looked = now
	info, err := os.Stat(u.path)
	if err != nil || info.ModTime().Equal(u.changed) {
		return u.servers // an editor may be replacing it
	}
	config, err := dns.ClientConfigFromFile(u.path)
	if err != nil {
		u.logger.Warn("reading the host's name servers failed", "path", u.path, "err", err)
		return u.servers
	}
	if u.port != "" {
		config.Port = u.port
	}
	u.changed, u.servers = info.ModTime(), usable(config, u.own)
	// Other servers may have other names.
	u.cache.clear()
	clear(u.unresponsive)
	return u.servers
}

// usable leaves out addresses that lead back to this server.
func usable(config *dns.ClientConfig, own netip.AddrPort) []string {
	var servers []string
	for _, host := range config.Servers {
		server, err := netip.ParseAddrPort(net.JoinHostPort(host, config.Port))
		back := server.Addr().Unmap() == own.Addr() && (server.Port() == own.Port() || server.Port() == clientPort)
		if err == nil && !back {
			servers = append(servers, server.String())
		}
	}
	return servers
}
