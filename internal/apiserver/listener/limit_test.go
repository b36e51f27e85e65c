package listener

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/testkit/poll"
)

func TestBudgetFor(t *testing.T) {
	t.Parallel()
	for files, want := range map[uint64]Budget{
		400:     {All: 200, Unauthenticated: 100, UnauthenticatedEach: 50},
		1024:    {All: 768, Unauthenticated: 384, UnauthenticatedEach: 192},
		20_000:  {All: 15_000, Unauthenticated: 4096, UnauthenticatedEach: 2048},
		1 << 62: {All: 786_432, Unauthenticated: 4096, UnauthenticatedEach: 2048},
	} {
		if got := BudgetFor(files); got != want {
			t.Errorf("BudgetFor(%d) = %+v, want %+v", files, got, want)
		}
	}
}

// fakeConn has addresses and records that it was closed.
type fakeConn struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (c *fakeConn) LocalAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 100), Port: 4997}
}
func (c *fakeConn) RemoteAddr() net.Addr { return c.from }
func (c *fakeConn) Close() error         { c.closed = true; return nil }

// connectionFactory creates connections within a budget, with a time that the test sets.
type connectionFactory struct {
	*Connections
	at   time.Time
	port int
}

func newConnectionFactory(b Budget) *connectionFactory {
	c := &connectionFactory{Connections: NewConnections(b, nil), at: time.Unix(1_700_000_000, 0)}
	c.now = func() time.Time { return c.at }
	return c
}

func (c *connectionFactory) dial(ip string) (*fakeConn, *conn) {
	c.port++
	f := &fakeConn{from: &net.TCPAddr{IP: net.ParseIP(ip), Port: c.port}}
	return f, c.admit(f)
}

// TestNodesBehindOneAddressFit: 5,000 nodes with two connections each fit behind one address,
// with the limit of open files of a small machine.
func TestNodesBehindOneAddressFit(t *testing.T) {
	t.Parallel()
	c := newConnectionFactory(BudgetFor(20_000))
	for i := range 10_000 {
		f, admitted := c.dial("198.51.100.7")
		if admitted == nil || f.closed {
			t.Fatalf("connection %d was refused", i)
		}
		if i%2 == 0 {
			Authenticate(admitted)
		} else {
			c.Authenticated(f.LocalAddr(), f.RemoteAddr().String())
		}
	}
	if c.all != 10_000 || c.unauthenticated != 0 || len(c.groups) != 0 || len(c.byRemote) != 0 {
		t.Errorf("%d connections, %d unauthenticated, %d groups, %d by address", c.all, c.unauthenticated, len(c.groups), len(c.byRemote))
	}
}

func TestUnauthenticatedConnectionsOfOneAddressMakeRoom(t *testing.T) {
	t.Parallel()
	c := newConnectionFactory(Budget{All: 100, Unauthenticated: 20, UnauthenticatedEach: 5})
	known, admitted := c.dial("192.0.2.1")
	Authenticate(admitted)
	first, _ := c.dial("192.0.2.1")
	for range 4 {
		c.dial("192.0.2.1")
	}
	// All of them are new. The next one is refused, and other addresses are not affected.
	if f, admitted := c.dial("192.0.2.1"); admitted != nil || !f.closed {
		t.Error("a sixth connection that has not authenticated was admitted")
	}
	if _, admitted := c.dial("192.0.2.2"); admitted == nil {
		t.Error("a connection of another address was refused")
	}
	// Later the oldest is closed for a new one.
	c.at = c.at.Add(settleTime)
	if f, admitted := c.dial("192.0.2.1"); admitted == nil || f.closed || !first.closed {
		t.Errorf("after %s, closed: new %v, oldest %v; want the oldest only", settleTime, f.closed, first.closed)
	}
	if known.closed {
		t.Error("a connection that had authenticated was closed")
	}
}

func TestUnauthenticatedConnectionsOfManyAddressesMakeRoom(t *testing.T) {
	t.Parallel()
	c := newConnectionFactory(Budget{All: 100, Unauthenticated: 6, UnauthenticatedEach: 4})
	crowdOf, _ := c.dial("2001:db8:0:1::1")
	c.dial("2001:db8:0:1::2") // of the same /64
	c.dial("2001:db8:0:1::3")
	c.dial("2001:db8:0:1::4")
	if _, admitted := c.dial("2001:db8:0:1::5"); admitted != nil {
		t.Error("a fifth connection of one /64 was admitted")
	}
	c.dial("192.0.2.1")
	c.dial("192.0.2.2")
	c.at = c.at.Add(settleTime)
	if _, admitted := c.dial("192.0.2.3"); admitted == nil || !crowdOf.closed {
		t.Errorf("the oldest connection of the address with most of them was not closed for a new one")
	}
}

func TestAllConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	c := newConnectionFactory(Budget{All: 4, Unauthenticated: 3, UnauthenticatedEach: 2})
	var ended *conn
	for range 4 {
		_, ended = c.dial("192.0.2.1")
		Authenticate(ended)
	}
	if _, admitted := c.dial("192.0.2.1"); admitted != nil {
		t.Error("a fifth connection was admitted")
	}
	_ = ended.Close()
	_ = ended.Close() // is counted once
	if _, admitted := c.dial("192.0.2.1"); admitted == nil {
		t.Error("a connection was refused although one had ended")
	}
	if c.all != 4 {
		t.Errorf("%d connections are counted, want 4", c.all)
	}
}

// TestByCertificate: a connection with a client certificate counts as authenticated after the
// handshake, also when it resumes a session. A connection without a certificate does not.
func TestByCertificate(t *testing.T) {
	t.Parallel()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair := func(certPEM, keyPEM []byte, err error) tls.Certificate {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		made, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	server := pair(authority.IssueServer([]string{"127.0.0.1"}, time.Hour))
	client := pair(authority.IssueClient(pkix.Name{CommonName: "n1"}, time.Hour))
	c := NewConnections(Budget{All: 10, Unauthenticated: 5, UnauthenticatedEach: 5}, nil)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	listener := tls.NewListener(c.Limit(plain), ByCertificate(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{server}, ClientCAs: authority.Pool(), ClientAuth: tls.VerifyClientCertIfGiven,
	}))
	go func() {
		for {
			accepted, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(accepted, accepted) }()
		}
	}()
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: authority.Pool(), Certificates: []tls.Certificate{client}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	resumed := false
	for range 2 {
		conn, err := tls.Dial("tcp", plain.Addr().String(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		// The response contains the session ticket for the next connection.
		if _, err := conn.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		resumed = conn.ConnectionState().DidResume
	}
	if !resumed {
		t.Error("the second connection did not resume the session")
	}
	none, err := tls.Dial("tcp", plain.Addr().String(), &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: authority.Pool()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = none.Close() })
	poll.Until(t, 30*time.Second, "one of three connections has not authenticated", func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.all != 3 || c.unauthenticated != 1 {
			return errors.New("not yet")
		}
		return nil
	})
}
