// Package dns answers DNS queries on a node. Names of the cluster come from the netmap, so they
// are answered even if the controller is down. All other queries are forwarded to the host's own
// name servers.
//
//	<workload>.<namespace>.<domain>             the workload's virtual addresses
//	<instance>.<workload>.<namespace>.<domain>  the instance
//	_port._proto.<workload>.<namespace>.<domain>  SRV: the address of a port
//	<workload>.<namespace>.short_names.<domain>   for search lists, see [instance.ShortNames]
package dns

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/riklet/network/netmap"
)

const (
	// ttl is short, because the answer for a workload may change at any time.
	ttl = 5
	// maxForwards bounds the queries that wait for other servers. It also ends a loop of servers
	// that query each other. See fairQueue.
	maxForwards = 256
	// maxWaiting bounds the queries that wait for an answer to the same query.
	maxWaiting = 2048
	// maxConnections bounds TCP connections, which may be idle for a while. They are also divided
	// among clients.
	maxConnections = 128
	idle           = 10 * time.Second
	// udpSize is the packet size that passes any network without fragmentation, as agreed for all
	// servers (DNS flag day 2020).
	udpSize = 1232
)

// Config configures a [Server]. All fields except Logger are required.
type Config struct {
	// Listen is the address at which the server answers, by UDP and TCP.
	Listen netip.AddrPort
	// Snapshot returns the current netmap.
	Snapshot func() *netmap.Snapshot
	// Resolver is the path of the host's resolv.conf(5).
	Resolver string
	// Logger may be nil, which discards logs.
	Logger *slog.Logger
}

// Server answers DNS queries. Its sockets are open from its creation.
type Server struct {
	cfg      Config
	udp      net.PacketConn
	tcp      net.Listener
	upstream *upstream
}

// New returns a server for open sockets, which then belong to the server.
func New(cfg Config, udp net.PacketConn, tcp net.Listener) *Server {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s := &Server{cfg: cfg, udp: udp, tcp: tcp}
	s.upstream = newUpstream(cfg, s.Address())
	return s
}

// Address returns the address at which the server answers.
func (s *Server) Address() netip.AddrPort {
	return s.udp.LocalAddr().(*net.UDPAddr).AddrPort() //nolint:forcetypeassert // it listens on UDP
}

// Run answers until ctx ends, and closes the sockets. It still answers the queries that it has
// received, which takes at most perQuery.
func (s *Server) Run(ctx context.Context) error {
	inFlight := context.WithoutCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { s.serve(inFlight, w, q) })
	servers := []*dns.Server{
		{PacketConn: s.udp, Handler: handler, UDPSize: dns.DefaultMsgSize},
		{Listener: sharing{s.tcp, newFairQueue(maxConnections)}, Handler: handler, IdleTimeout: func() time.Duration { return idle }},
	}
	for _, server := range servers {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		served := make(chan struct{})
		group.Go(func() error {
			defer close(served)
			return server.ActivateAndServe()
		})
		group.Go(func() error {
			<-ctx.Done()
			select { // one that has not started cannot be shut down
			case <-started:
			case <-served:
				return nil
			}
			return server.ShutdownContext(context.WithoutCancel(ctx))
		})
	}
	err := group.Wait()
	// Servers that did not start have not closed their sockets.
	_, _ = s.udp.Close(), s.tcp.Close()
	if ctx.Err() != nil && errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Close releases the sockets of a server that does not run.
func (s *Server) Close() error { return errors.Join(s.udp.Close(), s.tcp.Close()) }

// serve answers one query.
func (s *Server) serve(ctx context.Context, w dns.ResponseWriter, q *dns.Msg) {
	snapshot := s.cfg.Snapshot()
	var reply *dns.Msg
	switch {
	case len(q.Question) != 1 || q.Opcode != dns.OpcodeQuery:
		reply = new(dns.Msg).SetRcode(q, dns.RcodeFormatError)
	case q.Question[0].Qclass == dns.ClassINET && within(q.Question[0].Name, shortDomain(snapshot)):
		reply = s.short(ctx, w, q, snapshot)
	case q.Question[0].Qclass == dns.ClassINET && within(q.Question[0].Name, snapshot.Settings.Domain):
		reply = answer(snapshot, q)
	case !s.serves(snapshot, w.RemoteAddr()):
		reply = new(dns.Msg).SetRcode(q, dns.RcodeRefused)
	default:
		reply = s.upstream.ask(ctx, q, isTCP(w), clientOf(w.RemoteAddr()))
	}
	if !isTCP(w) {
		reply.Truncate(sizeFor(q))
	}
	// If the client is gone, it needs no answer.
	_ = w.WriteMsg(reply)
}

// serves reports whether a client may query names outside the cluster. The machine itself and the
// cluster's instances may. Other clients could misuse the node as an open resolver.
func (s *Server) serves(snapshot *netmap.Snapshot, client net.Addr) bool {
	a := clientOf(client)
	return a.IsLoopback() || a == s.Address().Addr() || snapshot.Settings.ClusterCIDR.Contains(a)
}

func isTCP(w dns.ResponseWriter) bool { return w.RemoteAddr().Network() == "tcp" }

// sizeFor returns the maximum size of an answer by UDP.
func sizeFor(q *dns.Msg) int {
	if opt := q.IsEdns0(); opt != nil {
		return max(dns.MinMsgSize, min(int(opt.UDPSize()), udpSize))
	}
	return dns.MinMsgSize
}
