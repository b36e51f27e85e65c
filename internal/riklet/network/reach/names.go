package reach

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"

	"rik.dev/rik/internal/riklet/netns"
	"rik.dev/rik/internal/wakeup"
)

// NamesView is the current input of the check of names.
type NamesView struct {
	// Known is false while the name server does not run or the check port is not connected. Until
	// then, an earlier result stays.
	Known bool
	// Unable is true if the check cannot work on this node.
	Unable bool
	// Namespace is the network namespace of the check port.
	Namespace *os.File
	// Server is where instances send their queries. Listens is where the name server listens.
	Server, Listens netip.AddrPort
	// Domain is the domain of the cluster, which the name server answers by itself.
	Domain string
	// Bridge is the name of the link on which queries arrive, for messages.
	Bridge string
}

// NamesConfig configures Names. All fields except Logger, Interval and Silence are required.
type NamesConfig struct {
	// View returns the current view.
	View func() NamesView
	// Notified is called with the new trouble when it has changed. "" means no trouble.
	Notified func(trouble string)
	// Path is the file with the last result, which survives a restart.
	Path string
	// Interval and Silence default to the package's constants.
	Interval, Silence time.Duration
	// Logger may be nil, which discards logs.
	Logger *slog.Logger
}

// Names checks that the name server answers the queries of instances. The check sends its queries
// from the check port, so they pass the same filters, rules and foreign firewalls as those of an
// instance. The check uses UDP only. It does not show that TCP passes, nor that the host's name
// servers answer.
type Names struct {
	cfg        NamesConfig
	memory     memory
	failed     string    // why no query could be sent, as last logged
	unanswered time.Time // of the first query since the last answer; zero: the last one was answered
	wake       wakeup.Signal
}

const (
	// namesUnchecked is the trouble of a node that has just started.
	namesUnchecked = "it is not known yet whether the name server answers instances; the first check has not ended"
	// answerTimeout is how long to wait for the answer to one query. A name server on a busy
	// machine answers queries for names of the cluster much earlier.
	answerTimeout = 2 * time.Second
)

// NewNames returns a check that starts with the result of an earlier one, and reports that result.
func NewNames(cfg NamesConfig) *Names {
	cfg.Interval = cmp.Or(cfg.Interval, Interval)
	cfg.Silence = cmp.Or(cfg.Silence, Silence)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	n := &Names{cfg: cfg, memory: remembered(cfg.Path, namesUnchecked, cfg.Logger), wake: wakeup.New()}
	cfg.Notified(n.memory.Trouble)
	return n
}

// Look makes the check read the view again at once. It does not block.
func (n *Names) Look() {
	n.wake.Wake()
}

// Run checks until ctx ends.
func (n *Names) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		case <-timer.C:
		}
		switch v := n.cfg.View(); {
		case v.Unable:
			n.unable()
		case v.Known:
			n.check(ctx, v)
		}
		timer.Reset(n.pause())
	}
}

// pause returns the time to the next query. It is shorter while an answer is missing, and shortest
// before the first answer.
func (n *Names) pause() time.Duration {
	switch {
	case !n.memory.Checked:
		return n.cfg.Interval / 20
	case n.memory.Trouble != "" || !n.unanswered.IsZero():
		return n.cfg.Interval / 5
	default:
		return n.cfg.Interval
	}
}

// check sends one query and records the result.
func (n *Names) check(ctx context.Context, v NamesView) {
	asked := time.Now()
	conn, err := dialFrom(ctx, v.Namespace, v.Server)
	if err != nil {
		n.unable()
		if text := err.Error(); text != n.failed {
			n.failed = text
			n.cfg.Logger.Warn("cannot check whether the name server answers instances", "err", err)
		}
		return
	}
	n.failed = ""
	err = ask(ctx, conn, v.Domain)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		n.unanswered = time.Time{}
	case n.unanswered.IsZero():
		n.unanswered = asked
	}
	n.conclude(ctx, v, time.Now())
}

// unable records that the check itself does not work. That says nothing about the name server. So a
// node that has just started has no trouble then, and an earlier result stays.
func (n *Names) unable() {
	n.unanswered = time.Time{}
	if n.memory.Trouble == namesUnchecked {
		n.memory.Trouble = ""
		n.cfg.Notified("")
	}
}

// conclude computes the result, and reports and saves it if it is new.
func (n *Names) conclude(ctx context.Context, v NamesView, now time.Time) {
	s, message := answeredSince(n.unanswered, now, n.cfg.Silence), namesUnchecked
	if s == inbound {
		message = describeNames(v, askHere(ctx, v))
	}
	next := n.memory.next(s, message)
	if next == n.memory || ctx.Err() != nil {
		return
	}
	if next.Trouble != n.memory.Trouble {
		n.cfg.Logger.Info("checked whether the name server answers instances", "state", s, "trouble", next.Trouble)
		n.cfg.Notified(next.Trouble)
	}
	n.memory = next
	n.memory.save(n.cfg.Path, n.cfg.Logger)
}

// answeredSince returns the result of a check. unanswered is the time of the first query since the
// last answer, or zero if the last query was answered.
func answeredSince(unanswered, now time.Time, silence time.Duration) state {
	switch {
	case unanswered.IsZero():
		return fine
	case now.Sub(unanswered) < silence:
		return waiting
	default:
		return inbound
	}
}

// describeNames returns a message with the next step. here is the reason why the name server does
// not answer the machine itself, or nil if it does.
func describeNames(v NamesView, here error) string {
	if here != nil {
		return fmt.Sprintf("the name server at %s answers neither instances nor this machine: %v; see network/dns.log in the node's state directory", v.Listens, here)
	}
	port := v.Listens.Port()
	return fmt.Sprintf("DNS queries of instances do not arrive at the name server, which answers this machine at %s. A firewall of this machine drops "+
		"packets from %s, although rik's iptables rules accept them. Next: accept UDP and TCP port %d from the link %s. "+
		"For firewalld: firewall-cmd --permanent --zone=trusted --add-interface=%s && firewall-cmd --reload. "+
		"For ufw: ufw allow in on %s to any port %d. For nftables: add \"iifname %s meta l4proto { tcp, udp } th dport %d accept\" to each input chain that drops",
		v.Listens, v.Bridge, port, v.Bridge, v.Bridge, v.Bridge, port, v.Bridge, port)
}

// dialFrom connects a UDP socket in a network namespace.
func dialFrom(ctx context.Context, namespace *os.File, to netip.AddrPort) (conn net.Conn, err error) {
	err = netns.Within(namespace, func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "udp4", to.String())
		return err
	})
	return conn, err
}

// askHere sends a query to the name server from the machine itself.
func askHere(ctx context.Context, v NamesView) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp4", v.Listens.String())
	if err != nil {
		return err
	}
	return ask(ctx, conn, v.Domain)
}

// ask sends a query and waits for any answer to it. It closes the connection.
func ask(ctx context.Context, conn net.Conn, domain string) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	client := &dns.Client{Timeout: answerTimeout}
	_, _, err := client.ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(dns.Fqdn(domain), dns.TypeSOA), &dns.Conn{Conn: conn})
	return err
}
