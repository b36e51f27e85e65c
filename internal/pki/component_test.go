package pki

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
)

// TestComponentsConnect checks that a component with a certificate of the authority reaches another
// one. The server sees the name in it, and sends the authority, which a joining node needs. A
// component of another authority is refused.
func TestComponentsConnect(t *testing.T) {
	t.Parallel()
	a, other := newAuthorityForTest(t), newAuthorityForTest(t)
	log := slog.New(slog.DiscardHandler)
	server, _, err := a.ServerTLS(t.Context(), OwnHosts(), log)
	if err != nil {
		t.Fatal(err)
	}
	own, _, err := a.ClientTLS(t.Context(), "rik:controller", "localhost", log)
	if err != nil {
		t.Fatal(err)
	}
	unknown, _, err := other.ClientTLS(t.Context(), "rik:controller", "localhost", log)
	if err != nil {
		t.Fatal(err)
	}
	unknown.RootCAs = a.Pool()
	seen, chain, err := handshake(server, own)
	if err != nil || seen != "rik:controller" || chain != 2 {
		t.Errorf("the server sees %q and sent %d certificates, %v, want the name and the authority too", seen, chain, err)
	}
	if _, _, err := handshake(server, unknown); err == nil {
		t.Error("the server accepts the certificate of another authority")
	}
}

// handshake connects a client to a server. It returns the client's name that the server sees, and
// the number of certificates that the server sent.
func handshake(server, client *tls.Config) (name string, chain int, err error) {
	a, b := net.Pipe()
	serves, asks := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := serves.Handshake()
		if err == nil {
			_, err = serves.Write([]byte("x"))
		}
		done <- errors.Join(err, a.Close())
	}()
	// With TLS 1.3 the client learns about a refused certificate when it reads.
	_, err = io.ReadFull(asks, make([]byte, 1))
	if state := asks.ConnectionState(); err == nil {
		chain = len(state.PeerCertificates)
	}
	err = errors.Join(err, b.Close(), <-done)
	if peers := serves.ConnectionState().PeerCertificates; len(peers) > 0 {
		name = peers[0].Subject.CommonName
	}
	return name, chain, err
}

func TestOwnHosts(t *testing.T) {
	t.Parallel()
	hosts := OwnHosts("", "api.example")
	if !slices.Contains(hosts, "127.0.0.1") || !slices.Contains(hosts, "api.example") || slices.Contains(hosts, "") {
		t.Errorf("OwnHosts() = %q", hosts)
	}
}
