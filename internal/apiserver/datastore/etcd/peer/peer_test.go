package peer

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"testing"
	"time"

	"rik.dev/rik/internal/pki"
)

func newPeer(t *testing.T, a *pki.Authority, name string, validity time.Duration) *pki.Peer {
	t.Helper()
	p, err := a.Peer(t.Context(), pki.PeerConfig{Dir: t.TempDir(), Server: name, Hosts: []string{"127.0.0.1"}, Validity: validity})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func listen(t *testing.T, p *pki.Peer) (port *Port, url string) {
	t.Helper()
	port, err := Listen("127.0.0.1:0", "s1", p.ServerTLS(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = port.Close() })
	return port, "https://" + port.Address().String()
}

// TestOnlyServersAreAccepted refuses the certificates of users and nodes, those of another
// authority, and clients without one. A server's own API certificate is refused too.
func TestOnlyServersAreAccepted(t *testing.T) {
	t.Parallel()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, url := listen(t, newPeer(t, authority, "s1", 0))
	second := newPeer(t, authority, "s2", 0)
	state, err := NewClient(second.ClientTLS()).Ask(t.Context(), url, 0)
	if err != nil || state.Server != "s1" || state.Member != 0 {
		t.Errorf("Ask() by a server = %+v, %v", state, err)
	}
	with := func(cert, key []byte, err error) *tls.Config {
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: authority.Pool(), Certificates: []tls.Certificate{pair}}
	}
	csr, key, err := pki.NewCSR(pkix.Name{})
	if err != nil {
		t.Fatal(err)
	}
	signed, signErr := authority.SignCSR(csr, pkix.Name{CommonName: "rik:server:s2"}, time.Hour)
	for name, config := range map[string]*tls.Config{
		"no certificate":                 {MinVersion: tls.VersionTLS13, RootCAs: authority.Pool()},
		"an administrator":               with(authority.IssueClient(pkix.Name{CommonName: "rik:admin", Organization: []string{"system:masters"}}, time.Hour)),
		"the name of a server, as a CSR": with(signed, key, signErr),
		"the API's certificate":          with(authority.IssueServer([]string{"127.0.0.1"}, time.Hour)),
		"another authority":              with(other.IssuePeer("s2", []string{"127.0.0.1"}, time.Hour)),
	} {
		if state, err := NewClient(config).Ask(t.Context(), url, 0); err == nil {
			t.Errorf("%s is accepted: %+v", name, state)
		}
	}
	// The client refuses a server with the API's certificate as well.
	cert, certKey, err := authority.IssueServer([]string{"127.0.0.1"}, time.Hour)
	fake, err := Listen("127.0.0.1:0", "fake", with(cert, certKey, err), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	if _, err := NewClient(second.ClientTLS()).Ask(t.Context(), "https://"+fake.Address().String(), 0); err == nil {
		t.Error("a server with the API's certificate is accepted as a peer")
	}
}

// TestARenewedCertificateIsUsed lets the certificates of both sides expire. Connections fail then,
// and work again after a renewal, without another port or client.
func TestARenewedCertificateIsUsed(t *testing.T) {
	t.Parallel()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const validity = time.Second
	server, client := newPeer(t, authority, "s1", validity), newPeer(t, authority, "s2", validity)
	_, url := listen(t, server)
	ask := func() error {
		c := NewClient(client.ClientTLS())
		defer c.Close()
		_, err := c.Ask(t.Context(), url, 0)
		return err
	}
	deadline := time.Now().Add(30 * time.Second)
	for ask() == nil {
		if time.Now().After(deadline) {
			t.Fatal("expired certificates are accepted")
		}
		<-time.After(100 * time.Millisecond)
	}
	if err := errors.Join(server.Renew(t.Context()), client.Renew(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Errorf("Ask() after the renewal = %v", err)
	}
}
