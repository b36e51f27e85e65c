package dns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// perServer and perQuestion bound the wait for other servers. Clients ask
	// again after 5 s.
	perServer   = 2 * time.Second
	perQuestion = 4500 * time.Millisecond
	// lookEvery bounds how often the host's file is looked at.
	lookEvery = 5 * time.Second
)

var errNoServer = errors.New("the host has no name server to ask")

// upstream are the host's name servers.
type upstream struct {
	path   string
	port   string         // empty: 53, there is no other in such a file
	own    netip.AddrPort // never asked
	slots  *share
	logger *slog.Logger

	mu      sync.Mutex
	looked  time.Time
	changed time.Time // when the file was
	servers []string
}

// ask hands a client's question on. When nobody answers, that is the answer.
func (u *upstream) ask(ctx context.Context, q *dns.Msg, tcp bool, client netip.Addr) *dns.Msg {
	if !u.slots.take(client) {
		return failure(q)
	}
	defer u.slots.give(client)
	reply, err := u.exchange(ctx, q, tcp)
	if err != nil {
		u.logger.Debug("name server does not answer", "name", q.Question[0].Name, "err", err)
		return failure(q)
	}
	reply.Id = q.Id
	return reply
}

func failure(q *dns.Msg) *dns.Msg {
	reply := new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	reply.RecursionAvailable = true
	return reply
}

// exchange asks one server after the other.
func (u *upstream) exchange(ctx context.Context, q *dns.Msg, tcp bool) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, perQuestion)
	defer cancel()
	client := &dns.Client{Net: "udp", Timeout: perServer, UDPSize: dns.MaxMsgSize}
	if tcp {
		client.Net = "tcp"
	}
	question := q.Copy()
	last := errNoServer
	for _, server := range u.list() {
		// Nobody who sees one question can guess the next.
		question.Id = dns.Id()
		reply, _, err := client.ExchangeContext(ctx, question, server)
		if err == nil && reply.Rcode != dns.RcodeServerFailure && reply.Rcode != dns.RcodeRefused {
			return reply, nil
		}
		if err == nil {
			err = errors.New(server + " says " + dns.RcodeToString[reply.Rcode])
		}
		last = err
	}
	return nil, last
}

// list reads the host's file again when it changed.
func (u *upstream) list() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if now.Sub(u.looked) < lookEvery {
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
	return u.servers
}

// usable leaves out what would lead back to this server.
func usable(config *dns.ClientConfig, own netip.AddrPort) []string {
	var servers []string
	for _, host := range config.Servers {
		server, err := netip.ParseAddrPort(net.JoinHostPort(host, config.Port))
		if err == nil && netip.AddrPortFrom(server.Addr().Unmap(), server.Port()) != own {
			servers = append(servers, server.String())
		}
	}
	return servers
}
