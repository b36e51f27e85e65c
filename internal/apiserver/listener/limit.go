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
	// settleTime is how long a connection may take to authenticate. After that it is closed for a
	// new connection if there are too many.
	settleTime = 5 * time.Second
	// reportInterval is the minimum interval of log messages about refused connections.
	reportInterval = time.Minute

	// minFree is the number of files that are left for the datastore and other uses, if the limit
	// of open files allows it.
	minFree = 256
	// maxUnauthenticated bounds the memory of unauthenticated connections, which use about 40 KB each.
	maxUnauthenticated = 4096
)

// Budget limits the connections of a process.
type Budget struct {
	// All is the limit of all connections.
	All int
	// Unauthenticated is the limit of unauthenticated connections. UnauthenticatedEach is that limit for one
	// address (or one /64 of IPv6).
	Unauthenticated, UnauthenticatedEach int
}

// BudgetFor derives a budget from the limit of open files. It leaves a quarter of the files,
// and at least 256, to the rest of the process. If that is more than half of the files, it
// leaves half.
func BudgetFor(files uint64) Budget {
	n := int(min(files, 1<<20))
	all := n - min(max(n/4, minFree), n/2)
	unauthenticated := min(all/2, maxUnauthenticated)
	return Budget{All: all, Unauthenticated: unauthenticated, UnauthenticatedEach: (unauthenticated + 1) / 2}
}

// Connections counts the connections of a process's listeners, which share one limit of open
// files. It prevents unauthenticated clients from using all of them.
type Connections struct {
	budget Budget
	log    *slog.Logger
	now    func() time.Time

	mu  sync.Mutex
	all int
	// unauthenticated is the number of unauthenticated connections. The maps contain them, the oldest
	// of a group first.
	unauthenticated int
	groups          map[netip.Prefix]*group
	byRemote        map[remote]*conn
	refused         int
	reportedAt      time.Time
}

// remote identifies a connection among those that are open.
type remote struct{ network, local, address string }

// group holds the unauthenticated connections of one address in the order of their arrival.
type group struct{ members []*conn }

// NewConnections creates the count of a process. A zero budget means that of the process's
// limit of open files.
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

// Limit returns a listener whose connections are counted. A connection above the limit is
// closed as soon as it is accepted.
func (c *Connections) Limit(listener net.Listener) net.Listener {
	return limited{Listener: listener, connections: c}
}

// Authenticated records that the client of a connection has shown a valid credential. The
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

// Authenticate records the same for a connection that Limit's listener accepted, even if it is
// wrapped. It ignores other connections.
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

// ByCertificate returns a copy of a configuration with which a connection counts as
// authenticated once the client's certificate was verified.
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

// Accept does not return an error for a refused connection, because the server would stop.
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

// conn is a connection that is counted until it is closed.
type conn struct {
	net.Conn
	connections     *Connections
	key             remote
	from            netip.Prefix
	since           time.Time
	unauthenticated bool
	counted         bool
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.connections.mu.Lock()
	c.connections.forgetLocked(c)
	c.connections.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the writing side, as for a TCP connection.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// admit counts a connection. If there are too many, it closes the connection and returns nil.
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
		_ = accepted.Close() // the client gets no message
		c.report(reason, added.from)
		return nil
	}
	return added
}

// makeRoomLocked returns a connection that must end for a new one, or says why the new one is
// refused.
func (c *Connections) makeRoomLocked(added *conn) (evicted *conn, reason string) {
	own := c.groups[added.from]
	switch {
	case own != nil && len(own.members) >= c.budget.UnauthenticatedEach:
		evicted, reason = own.members[0], fmt.Sprintf("%d connections of this address are not authenticated", len(own.members))
	case c.unauthenticated >= c.budget.Unauthenticated:
		evicted, reason = c.oldestOfMostLocked(), fmt.Sprintf("%d connections are not authenticated", c.unauthenticated)
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

// oldestOfMostLocked returns the oldest unauthenticated connection of the address that has the
// most.
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
	added.unauthenticated, added.counted = true, true
	c.unauthenticated++
	c.all++
	c.byRemote[added.key] = added
}

// settleLocked removes a connection from the unauthenticated ones.
func (c *Connections) settleLocked(known *conn) {
	if !known.unauthenticated {
		return
	}
	known.unauthenticated = false
	c.unauthenticated--
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

// report logs that connections are refused, at most once per reportInterval.
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
		c.log.Log(context.Background(), slog.LevelWarn, "closing a connection, because there are too many", "from", from.String(), "reason", reason, "refused", refused)
	}
}

// prefixOf returns the prefix that counts as one address. For IPv6 that is the /64.
func prefixOf(address net.Addr) netip.Prefix {
	parsed, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return netip.Prefix{} // not an IP address, such as for a pipe
	}
	ip := parsed.Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.Prefix(bits) // both lengths are valid
	return prefix
}
