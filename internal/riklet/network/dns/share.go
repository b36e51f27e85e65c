package dns

import (
	"net"
	"net/netip"
	"sync"
)

// share divides places among clients. None may have more than it leaves free: who asks
// much, or of servers that never answer, keeps nobody else from being answered.
type share struct {
	most int

	mu sync.Mutex
	// Below is guarded by mu.
	taken int
	of    map[netip.Addr]int
}

func newShare(most int) *share { return &share{most: most, of: map[netip.Addr]int{}} }

// take is false when the client may have no further place now.
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

// clientOf is invalid for what is no address of IP.
func clientOf(a net.Addr) netip.Addr {
	parsed, _ := netip.ParseAddrPort(a.String())
	return parsed.Addr().Unmap()
}

// sharing is a listener that turns away those who have more connections than their share.
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

// shared is a connection that has a place.
type shared struct {
	net.Conn
	give func()
}

// Close implements net.Conn.
func (c *shared) Close() error {
	c.give()
	return c.Conn.Close()
}
