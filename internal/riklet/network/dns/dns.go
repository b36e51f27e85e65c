// Package dns answers names on a node. Those of the cluster come from the
// network's table, so they are answered whether or not the controller is there;
// all others are asked of the host's own name servers.
//
//	<workload>.<namespace>.<domain>             the workload's virtual addresses
//	<instance>.<workload>.<namespace>.<domain>  the instance
//	_port._proto.<workload>.<namespace>.<domain>  SRV: where a port is
//	<workload>.<namespace>.short_names.<domain>   the same for those who search, see [instance.ShortNames]
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/riklet/network/netmap"
)

const (
	// ttl is short: what a workload's name means may change at any time.
	ttl = 5
	// forwardsAtOnce bounds the questions that wait for other servers. Also a
	// loop of servers that ask each other ends there. See share.
	forwardsAtOnce = 256
	// waitsAtOnce bounds the questions that wait for an answer to the same question.
	waitsAtOnce = 2048
	// connectionsAtOnce bounds TCP connections; each may stay idle for a while. They are
	// shared as well.
	connectionsAtOnce = 128
	idle              = 10 * time.Second
	// udpSize is what passes any network in one piece, as all servers agreed on
	// (DNS flag day 2020).
	udpSize = 1232
)

// Config of a [Server]. All but Logger is required.
type Config struct {
	// Listen is the address that is answered at, by UDP and TCP.
	Listen netip.AddrPort
	// Snapshot gives the present table.
	Snapshot func() *netmap.Snapshot
	// Resolver is the path of the host's resolv.conf(5).
	Resolver string
	// Logger discards when nil.
	Logger *slog.Logger
}

// Server has its sockets open from [Listen] on.
type Server struct {
	cfg      Config
	udp      net.PacketConn
	tcp      net.Listener
	upstream *upstream
}

// Listen opens the sockets. With port 0 the kernel chooses one.
func Listen(ctx context.Context, cfg Config) (*Server, error) {
	var listen net.ListenConfig
	udp, err := listen.ListenPacket(ctx, "udp", cfg.Listen.String())
	if err != nil {
		return nil, fmt.Errorf("answering names at %s: %w", cfg.Listen, err)
	}
	// The same port as the kernel chose.
	tcp, err := listen.Listen(ctx, "tcp", udp.LocalAddr().String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("answering names at %s: %w", udp.LocalAddr(), err), udp.Close())
	}
	return New(cfg, udp, tcp), nil
}

// New answers at sockets that are open; they are the server's from now on.
func New(cfg Config, udp net.PacketConn, tcp net.Listener) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, udp: udp, tcp: tcp}
	s.upstream = newUpstream(cfg, s.Address())
	return s
}

// Address is where the server answers.
func (s *Server) Address() netip.AddrPort {
	return s.udp.LocalAddr().(*net.UDPAddr).AddrPort() //nolint:forcetypeassert // it listens on UDP
}

// Run answers until ctx ends, and closes the sockets. Questions that came before are answered,
// which takes perQuestion at most.
func (s *Server) Run(ctx context.Context) error {
	inFlight := context.WithoutCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { s.serve(inFlight, w, q) })
	servers := []*dns.Server{
		{PacketConn: s.udp, Handler: handler, UDPSize: dns.DefaultMsgSize},
		{Listener: sharing{s.tcp, newShare(connectionsAtOnce)}, Handler: handler, IdleTimeout: func() time.Duration { return idle }},
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
	// Those that did not serve did not close theirs.
	_, _ = s.udp.Close(), s.tcp.Close()
	if ctx.Err() != nil && errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Close releases the sockets of a server that does not run.
func (s *Server) Close() error { return errors.Join(s.udp.Close(), s.tcp.Close()) }

// serve answers one question.
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
	// A client that is gone needs no answer.
	_ = w.WriteMsg(reply)
}

// serves says whether somebody may ask for names of the world: the machine
// itself and the cluster's instances may, others would use the node to ask in
// its name.
func (s *Server) serves(snapshot *netmap.Snapshot, client net.Addr) bool {
	a := clientOf(client)
	return a.IsLoopback() || a == s.Address().Addr() || snapshot.Settings.ClusterCIDR.Contains(a)
}

func isTCP(w dns.ResponseWriter) bool { return w.RemoteAddr().Network() == "tcp" }

// sizeFor is how large an answer by UDP may be.
func sizeFor(q *dns.Msg) int {
	if opt := q.IsEdns0(); opt != nil {
		return max(dns.MinMsgSize, min(int(opt.UDPSize()), udpSize))
	}
	return dns.MinMsgSize
}
