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
	// perQuestion bounds the wait for other servers. Clients ask again after 5 s.
	perQuestion = 4500 * time.Millisecond
	// leastAttempts is how often a question is asked at least, of one server or of several.
	leastAttempts = 3
	// A server that does not answer is asked after the others for firstPause, and for twice as
	// long each time that it fails again, up to longestPause.
	firstPause   = 2 * time.Second
	longestPause = 30 * time.Second
	// lookInterval bounds how often the host's file is looked at.
	lookInterval = 5 * time.Second
)

// clientPort is where clients ask; the node's rules redirect it to this server.
const clientPort = 53

var errNoServer = errors.New("the host has no name server to ask")

// upstream are the host's name servers, with a cache before them.
type upstream struct {
	path   string
	port   string         // empty: 53, there is no other in such a file
	own    netip.AddrPort // never asked, nor port 53 there: it leads to the same server
	slots  *share         // of questions to the servers
	waits  *share         // of questions that wait for an answer, also one that is on its way
	cache  *cache
	logger *slog.Logger

	mu sync.Mutex
	// Below is guarded by mu.
	looked  time.Time
	changed time.Time // when the file was
	servers []string
	silent  map[string]silence
	flights map[question]*flight
}

// silence is what is remembered of a server that did not answer.
type silence struct {
	times int
	until time.Time
	tried bool // one question tries it
}

// flight is a question that the servers are asked, on behalf of all that ask it meanwhile.
type flight struct {
	done  chan struct{} // closed when reply is there
	reply *dns.Msg      // nil: nobody answered
}

func newUpstream(cfg Config, own netip.AddrPort) *upstream {
	return &upstream{
		path: cfg.Resolver, own: own, slots: newShare(forwardsAtOnce), waits: newShare(waitsAtOnce), cache: newCache(), logger: cfg.Logger,
		silent: map[string]silence{}, flights: map[question]*flight{},
	}
}

// ask answers a client's question from the cache, or hands it on. When nobody answers, that
// is the answer.
func (u *upstream) ask(ctx context.Context, q *dns.Msg, tcp bool, client netip.Addr) *dns.Msg {
	key := questionOf(q, tcp)
	if reply := u.cache.get(key, time.Now()); reply != nil {
		return replyTo(q, reply)
	}
	if !u.waits.take(client) {
		return failure(q)
	}
	defer u.waits.give(client)
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

// replyTo makes what a server answered the answer to a client's question.
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

// join gives the flight of a question: the one that is under way, or one that begins. It is
// nil when the client has its share of them.
func (u *upstream) join(ctx context.Context, key question, client netip.Addr) *flight {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f, ok := u.flights[key]; ok {
		return f
	}
	if !u.slots.take(client) {
		return nil
	}
	f := &flight{done: make(chan struct{})}
	u.flights[key] = f
	go func() {
		defer u.slots.give(client)
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

// outcome is what came of one attempt.
type outcome struct {
	server string
	reply  *dns.Msg // nil when it did not answer
	err    error
}

// useful tells whether the reply is an answer, and not that there is none.
func (o outcome) useful() bool {
	return o.reply != nil && o.reply.Rcode != dns.RcodeServerFailure && o.reply.Rcode != dns.RcodeRefused
}

// exchange asks one server after the other, and again. An attempt that has no answer yet stays
// open while the next ones are made: the first useful answer counts.
func (u *upstream) exchange(ctx context.Context, key question) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, perQuestion, errors.New("no name server answered in time"))
	defer cancel()
	servers := u.order(time.Now())
	if len(servers) == 0 {
		return nil, errNoServer
	}
	attempts := attemptsAt(servers)
	interval := perQuestion / time.Duration(len(attempts)+1)
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
			case o.useful():
				u.answered(o.server)
				return o.reply, nil
			case o.reply != nil: // it would say the same again
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

// attemptsAt lists whom to ask, in this order: each server twice, and one alone more often.
func attemptsAt(servers []string) []string {
	var all []string
	for len(all) < max(leastAttempts, 2*len(servers)) {
		all = append(all, servers...)
	}
	return all
}

// attempt asks one server once. Nobody who sees one question can guess the next.
func (u *upstream) attempt(ctx context.Context, key question, server string) outcome {
	client := &dns.Client{Net: "udp", Timeout: perQuestion, UDPSize: dns.MaxMsgSize}
	if key.tcp {
		client.Net = "tcp"
	}
	reply, _, err := client.ExchangeContext(ctx, key.message(), server)
	if err != nil {
		return outcome{server: server, err: err}
	}
	o := outcome{server: server, reply: reply}
	if !o.useful() {
		o.err = errors.New(server + " says " + dns.RcodeToString[reply.Rcode])
	}
	return o
}

// order gives the servers, those that are silent last. After its pause a silent server is tried
// by one question at a time.
func (u *upstream) order(now time.Time) []string {
	servers := slices.Clone(u.list())
	u.mu.Lock()
	defer u.mu.Unlock()
	last := map[string]int{}
	for _, server := range servers {
		s, silent := u.silent[server]
		switch {
		case !silent:
		case now.Before(s.until):
			last[server] = 1
		default:
			s.until, s.tried = now.Add(firstPause), true
			u.silent[server] = s
		}
	}
	slices.SortStableFunc(servers, func(a, b string) int { return last[a] - last[b] })
	return servers
}

// failed notes the servers of which an attempt has no answer. It counts once for all
// questions that wait at the same time.
func (u *upstream) failed(open map[string]int) {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	for server, n := range open {
		s := u.silent[server]
		if n <= 0 || now.Before(s.until) && !s.tried {
			continue
		}
		if s.times == 0 {
			u.logger.Warn("a name server of the host does not answer; the others are asked first", "server", server)
		}
		s.until = now.Add(min(firstPause<<min(s.times, 8), longestPause))
		s.times++
		s.tried = false
		u.silent[server] = s
	}
}

func (u *upstream) answered(server string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, was := u.silent[server]; was {
		delete(u.silent, server)
		u.logger.Info("a name server of the host answers again", "server", server)
	}
}

// list reads the host's file again when it changed.
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
		u.logger.Warn("the host's name servers could not be read", "path", u.path, "err", err)
		return u.servers
	}
	if u.port != "" {
		config.Port = u.port
	}
	u.changed, u.servers = info.ModTime(), usable(config, u.own)
	// Other servers may know other names.
	u.cache.clear()
	clear(u.silent)
	return u.servers
}

// usable leaves out what would lead back to this server.
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
