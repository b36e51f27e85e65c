package fetch

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"rik.dev/rik/internal/pause"
)

// tunnel is a SOCKS 5 proxy on loopback for the HTTP client of this process. It makes each
// connection with connect. Other processes on the machine do not have its password.
type tunnel struct {
	url      *url.URL
	connect  func(ctx context.Context, target string) (net.Conn, error)
	listener net.Listener
	password string
	cancel   context.CancelFunc
	conns    sync.WaitGroup
}

// Constants of RFC 1928 and RFC 1929.
const (
	socksVersion     = 5
	socksPassword    = 2
	socksNoMethod    = 0xff
	socksSubversion  = 1
	socksConnect     = 1
	socksIPv4        = 1
	socksName        = 3
	socksIPv6        = 4
	socksGranted     = 0
	socksFailed      = 1
	socksUnsupported = 7
)

// greetingTime is the timeout for the greeting of a client in the same process.
const greetingTime = 10 * time.Second

var errNotOurs = errors.New("not our client")

// openTunnel opens a tunnel. Close ends it and its connections.
func openTunnel(connect func(ctx context.Context, target string) (net.Conn, error)) (*tunnel, error) {
	var lc net.ListenConfig
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return nil, err
	}
	t := &tunnel{connect: connect, listener: listener, password: rand.Text(), cancel: cancel}
	t.url = &url.URL{Scheme: "socks5", Host: listener.Addr().String(), User: url.UserPassword("rik", t.password)}
	t.conns.Go(func() { t.accept(ctx) })
	return t, nil
}

// Close waits until the connections have ended.
func (t *tunnel) Close() error {
	t.cancel()
	err := t.listener.Close()
	t.conns.Wait()
	return err
}

func (t *tunnel) accept(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := t.listener.Accept()
		if err != nil {
			// The listener is closed, or the process has no file descriptors left; other code
			// reports that too.
			pause.For(ctx, 100*time.Millisecond)
			continue
		}
		t.conns.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			defer func() { _ = conn.Close() }()
			t.serve(ctx, conn.(*net.TCPConn)) //nolint:forcetypeassert // the listener is TCP's
		})
	}
}

// serve reports errors only to its client.
func (t *tunnel) serve(ctx context.Context, client *net.TCPConn) {
	_ = client.SetDeadline(time.Now().Add(greetingTime))
	target, err := t.greet(client)
	if err != nil {
		return
	}
	_ = client.SetDeadline(time.Time{})
	upstream, err := t.connect(ctx, target)
	if err != nil {
		_, _ = client.Write(socksReply(socksFailed))
		return
	}
	defer context.AfterFunc(ctx, func() { _ = upstream.Close() })()
	defer func() { _ = upstream.Close() }()
	if _, err := client.Write(socksReply(socksGranted)); err != nil {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		if _, err := io.Copy(client, upstream); err != nil {
			_ = client.SetLinger(0) // so that the client sees that the connection was cut
			_ = client.Close()
			return
		}
		_ = client.CloseWrite()
	})
	// The client closes only when it needs no more of the answer either.
	_, _ = io.Copy(upstream, client)
	_ = upstream.Close()
	back.Wait()
}

// greet authenticates the client and returns its target as host:port.
func (t *tunnel) greet(client io.ReadWriter) (string, error) {
	methods, err := readSized(client, socksVersion)
	if err != nil {
		return "", err
	}
	if !slices.Contains(methods, socksPassword) {
		_, _ = client.Write([]byte{socksVersion, socksNoMethod})
		return "", errNotOurs
	}
	if _, err := client.Write([]byte{socksVersion, socksPassword}); err != nil {
		return "", err
	}
	if _, err := readSized(client, socksSubversion); err != nil { // the user's name
		return "", err
	}
	password, err := readString(client)
	if err != nil {
		return "", err
	}
	if subtle.ConstantTimeCompare(password, []byte(t.password)) != 1 {
		_, _ = client.Write([]byte{socksSubversion, socksFailed})
		return "", errNotOurs
	}
	if _, err := client.Write([]byte{socksSubversion, socksGranted}); err != nil {
		return "", err
	}
	target, err := readTarget(client)
	if err != nil {
		_, _ = client.Write(socksReply(socksUnsupported))
	}
	return target, err
}

// readTarget reads the request for a connection.
func readTarget(r io.Reader) (string, error) {
	var head [4]byte // version, command, reserved, kind of address
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	if head[0] != socksVersion || head[1] != socksConnect {
		return "", fmt.Errorf("%w: version %d, command %d", errNotOurs, head[0], head[1])
	}
	var host string
	switch kind := head[3]; kind {
	case socksIPv4, socksIPv6:
		raw := make([]byte, map[byte]int{socksIPv4: net.IPv4len, socksIPv6: net.IPv6len}[kind])
		if _, err := io.ReadFull(r, raw); err != nil {
			return "", err
		}
		addr, _ := netip.AddrFromSlice(raw)
		host = addr.String()
	case socksName:
		name, err := readString(r)
		if err != nil {
			return "", err
		}
		host = string(name)
	default:
		return "", fmt.Errorf("%w: kind of address %d", errNotOurs, kind)
	}
	var port [2]byte
	if _, err := io.ReadFull(r, port[:]); err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port[0])<<8|int(port[1]))), nil
}

// readSized reads a version, and then like readString.
func readSized(r io.Reader, version byte) ([]byte, error) {
	var got [1]byte
	if _, err := io.ReadFull(r, got[:]); err != nil {
		return nil, err
	}
	if got[0] != version {
		return nil, fmt.Errorf("%w: version %d", errNotOurs, got[0])
	}
	return readString(r)
}

// readString reads a byte with a length, and that number of bytes.
func readString(r io.Reader) ([]byte, error) {
	var length [1]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	out := make([]byte, length[0])
	_, err := io.ReadFull(r, out)
	return out, err
}

// socksReply returns an answer without an address, which the client does not use.
func socksReply(code byte) []byte {
	return []byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0}
}
