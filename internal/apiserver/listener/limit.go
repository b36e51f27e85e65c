package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// settleTime is how long a connection may take to show who it is. After that it makes
	// room for a new one when there are too many.
	settleTime = 5 * time.Second
	// reportInterval is how often at most the log says that connections are refused.
	reportInterval = time.Minute

	// minFree is how many files are left to the datastore and everything else, where the
	// limit of open files allows it.
	minFree = 256
	// maxStrangers bounds the memory of connections whose client is not known: some 40 KB each.
	maxStrangers = 4096
)

// Budget is how many connections a process may have at once.
type Budget struct {
	// All is the number of all connections.
	All int
	// Strangers is the number of those that have not shown a valid credential, and
	// StrangersEach of those of one address (or of one /64 of IPv6).
	Strangers, StrangersEach int
}

// BudgetFor derives a budget from the limit of open files. A quarter of the files, and 256
// at least, is left to the rest of the process; half of them where that is too much.
func BudgetFor(files uint64) Budget {
	n := int(min(files, 1<<20))
	all := n - min(max(n/4, minFree), n/2)
	strangers := min(all/2, maxStrangers)
	return Budget{All: all, Strangers: strangers, StrangersEach: (strangers + 1) / 2}
}

// Connections counts the connections of a process's listeners, which share one limit of
// open files. It keeps clients without a credential from using them up.
type Connections struct {
	budget Budget
	log    *slog.Logger
	now    func() time.Time

	mu  sync.Mutex
	all int
	// strangers is the number of connections that have not authenticated. The maps hold
	// them: the oldest of a group first.
	strangers  int
	groups     map[netip.Prefix]*group
	byRemote   map[remote]*conn
	refused    int
	reportedAt time.Time
}

// remote tells connections apart that are open at the same time.
type remote struct{ network, local, address string }

// group are the strangers of one address in the order in which they came.
type group struct{ members []*conn }

// NewConnections makes the count of a process. The budget is that of the process's limit of
// open files if it is zero.
func NewConnections(budget Budget, log *slog.Logger) *Connections {
	if budget == (Budget{}) {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			limit.Cur = 1024
		}
		budget = BudgetFor(limit.Cur)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Connections{budget: budget, log: log, now: time.Now, groups: map[netip.Prefix]*group{}, byRemote: map[remote]*conn{}}
}

// Limit returns a listener whose connections count. One that is too many is closed as soon
// as it is accepted.
func (c *Connections) Limit(listener net.Listener) net.Listener {
	return limited{Listener: listener, connections: c}
}

// Authenticated says that the client of a connection has shown a valid credential. The
// addresses are those of the connection, as in an http.Request.
func (c *Connections) Authenticated(local net.Addr, remoteAddress string) {
	if local == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.byRemote[remote{local.Network(), local.String(), remoteAddress}]; found != nil {
		c.settleLocked(found)
	}
}

// Authenticate says the same of a connection that Limit's listener accepted, however it is
// wrapped. Others are left alone.
func Authenticate(accepted net.Conn) {
	for {
		switch wrapped := accepted.(type) {
		case *conn:
			wrapped.connections.mu.Lock()
			wrapped.connections.settleLocked(wrapped)
			wrapped.connections.mu.Unlock()
			return
		case interface{ NetConn() net.Conn }:
			accepted = wrapped.NetConn()
		default:
			return
		}
	}
}

// ByCertificate returns a configuration as the given one, with which a connection counts
// as authenticated once the client's certificate has been verified.
func ByCertificate(config *tls.Config) *tls.Config {
	outer := config.Clone()
	outer.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		inner := config.Clone()
		inner.VerifyConnection = func(state tls.ConnectionState) error {
			if len(state.VerifiedChains) > 0 {
				Authenticate(hello.Conn)
			}
			return nil
		}
		return inner, nil
	}
	return outer
}

type limited struct {
	net.Listener
	connections *Connections
}

// Accept does not return what is refused: the server would take an error for its own end.
func (l limited) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.connections.admit(accepted); c != nil {
			return c, nil
		}
	}
}

// conn is a connection that counts until it is closed.
type conn struct {
	net.Conn
	connections *Connections
	key         remote
	from        netip.Prefix
	since       time.Time
	stranger    bool
	counted     bool
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.connections.mu.Lock()
	c.connections.forgetLocked(c)
	c.connections.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite is as of a TCP connection.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// admit counts a connection, and closes it and returns nil when it is too many.
func (c *Connections) admit(accepted net.Conn) *conn {
	local, address := accepted.LocalAddr(), accepted.RemoteAddr()
	added := &conn{
		Conn: accepted, connections: c, from: prefixOf(address), since: c.now(),
		key: remote{local.Network(), local.String(), address.String()},
	}
	c.mu.Lock()
	evicted, reason := c.makeRoomLocked(added)
	if reason == "" {
		c.addLocked(added)
	}
	c.mu.Unlock()
	if evicted != nil {
		_ = evicted.Conn.Close() // its server sees that in its next read
	}
	if reason != "" {
		_ = accepted.Close() // nobody is there to be told
		c.report(reason, added.from)
		return nil
	}
	return added
}

// makeRoomLocked finds a connection that has to end for a new one, or says why the new one
// has to.
func (c *Connections) makeRoomLocked(added *conn) (evicted *conn, reason string) {
	own := c.groups[added.from]
	switch {
	case own != nil && len(own.members) >= c.budget.StrangersEach:
		evicted, reason = own.members[0], fmt.Sprintf("%d connections of this address have not authenticated", len(own.members))
	case c.strangers >= c.budget.Strangers:
		evicted, reason = c.oldestOfMostLocked(), fmt.Sprintf("%d connections have not authenticated", c.strangers)
	case c.all >= c.budget.All:
		evicted, reason = c.oldestOfMostLocked(), fmt.Sprintf("there are %d connections; a higher limit of open files allows more", c.all)
	default:
		return nil, ""
	}
	if evicted == nil || c.now().Sub(evicted.since) < settleTime {
		return nil, reason
	}
	c.forgetLocked(evicted)
	return evicted, ""
}

// oldestOfMostLocked is the oldest stranger of the address that has most of them.
func (c *Connections) oldestOfMostLocked() *conn {
	var most *group
	for _, g := range c.groups {
		if most == nil || len(g.members) > len(most.members) {
			most = g
		}
	}
	if most == nil {
		return nil
	}
	return most.members[0]
}

func (c *Connections) addLocked(added *conn) {
	g := c.groups[added.from]
	if g == nil {
		g = &group{}
		c.groups[added.from] = g
	}
	g.members = append(g.members, added)
	added.stranger, added.counted = true, true
	c.strangers++
	c.all++
	c.byRemote[added.key] = added
}

// settleLocked takes a connection from the strangers.
func (c *Connections) settleLocked(known *conn) {
	if !known.stranger {
		return
	}
	known.stranger = false
	c.strangers--
	if c.byRemote[known.key] == known {
		delete(c.byRemote, known.key)
	}
	g := c.groups[known.from]
	for i, member := range g.members {
		if member == known {
			g.members = append(g.members[:i], g.members[i+1:]...)
			break
		}
	}
	if len(g.members) == 0 {
		delete(c.groups, known.from)
	}
}

func (c *Connections) forgetLocked(ended *conn) {
	if !ended.counted {
		return
	}
	ended.counted = false
	c.settleLocked(ended)
	c.all--
}

// report says that a connection was refused, unless that was said a moment ago.
func (c *Connections) report(reason string, from netip.Prefix) {
	c.mu.Lock()
	c.refused++
	refused, now := c.refused, c.now()
	due := now.Sub(c.reportedAt) >= reportInterval
	if due {
		c.refused, c.reportedAt = 0, now
	}
	c.mu.Unlock()
	if due {
		c.log.Log(context.Background(), slog.LevelWarn, "connections are refused", "from", from.String(), "reason", reason, "refused", refused)
	}
}

// prefixOf is what counts as one address: who has an IPv6 address has its /64.
func prefixOf(address net.Addr) netip.Prefix {
	parsed, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return netip.Prefix{} // not of the network, such as a pipe
	}
	ip := parsed.Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.Prefix(bits) // neither is out of range
	return prefix
}
