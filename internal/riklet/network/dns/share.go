package dns

import (
	"net"
	"net/netip"
	"sync"
)

// share divides places among clients. A client may have at most as many places as it leaves free.
// Thus a client that sends many queries, or queries that are never answered, does not block other
// clients.
type share struct {
	most int

	mu sync.Mutex
	// The fields below are guarded by mu.
	taken int
	of    map[netip.Addr]int
}

func newShare(most int) *share { return &share{most: most, of: map[netip.Addr]int{}} }

// take returns false if the client may not have another place now.
func (s *share) take(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[client] >= s.most-s.taken {
		return false
	}
	s.of[client]++
	s.taken++
	return true
}

func (s *share) give(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.of[client]--; s.of[client] == 0 {
		delete(s.of, client)
	}
}

// clientOf returns the client's address. It is invalid for an address that is not IP.
func clientOf(a net.Addr) netip.Addr {
	parsed, _ := netip.ParseAddrPort(a.String())
	return parsed.Addr().Unmap()
}

// sharing is a listener that rejects clients with more connections than their share.
type sharing struct {
	net.Listener
	share *share
}

// Accept implements net.Listener.
func (l sharing) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(conn.RemoteAddr())
		if l.share.take(client) {
			return &shared{Conn: conn, give: sync.OnceFunc(func() { l.share.give(client) })}, nil
		}
		_ = conn.Close() // it may come again
	}
}

// shared is a connection that occupies a place.
type shared struct {
	net.Conn
	give func()
}

// Close implements net.Conn.
func (c *shared) Close() error {
	c.give()
	return c.Conn.Close()
}
