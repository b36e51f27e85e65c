package datastore

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/pki"
)

// listen is a server that accepts TLS connections and waits for requests.
func listen(t *testing.T, authority *pki.Authority, auth tls.ClientAuthType) string {
	t.Helper()
	certPEM, keyPEM, err := authority.IssueServer([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: auth, ClientCAs: authority.Pool(), NextProtos: []string{"h2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = conn.Read(make([]byte, 1)) // the handshake, then the end of the client
				_ = conn.Close()
			}()
		}
	}()
	return "https://" + listener.Addr().String()
}

func newAuthority(t *testing.T) (authority *pki.Authority, caFile string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	authority, err := pki.LoadOrCreate(dir)
	if err != nil {
		t.Fatal(err)
	}
	return authority, filepath.Join(dir, pki.CertificateFile)
}

func TestCertificatesThatDoNotFitAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	authority, ca := newAuthority(t)
	_, otherCA := newAuthority(t)
	certPEM, keyPEM, err := authority.IssueClient(pkix.Name{CommonName: "rik"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c.crt"), filepath.Join(dir, "c.key")
	if err := errors.Join(os.WriteFile(cert, certPEM, 0o600), os.WriteFile(key, keyPEM, 0o600)); err != nil {
		t.Fatal(err)
	}
	anyone, known := listen(t, authority, tls.NoClientCert), listen(t, authority, tls.RequireAndVerifyClientCert)
	for name, tc := range map[string]struct {
		cfg  Config
		says string
	}{
		"unknown authority":   {Config{Endpoint: anyone}, "--datastore-cafile"},
		"another authority":   {Config{Endpoint: anyone, CAFile: otherCA}, "--datastore-cafile"},
		"another name":        {Config{Endpoint: strings.Replace(anyone, "127.0.0.1", "localhost", 1), CAFile: ca}, "--datastore-cafile"},
		"no client":           {Config{Endpoint: known, CAFile: ca}, "--datastore-certfile"},
		"a client":            {Config{Endpoint: known, CAFile: ca, CertFile: cert, KeyFile: key}, ""},
		"anyone":              {Config{Endpoint: anyone, CAFile: ca}, ""},
		"one of two is there": {Config{Endpoint: "https://127.0.0.1:1," + anyone, CAFile: ca}, ""},
	} {
		tc.cfg.Logger = slog.New(slog.DiscardHandler)
		_, err := Open(t.Context(), tc.cfg)
		if tc.says == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if tc.says != "" && (!errors.Is(err, ErrCertificates) || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "https://")) {
			t.Errorf("%s: Open() = %v, want ErrCertificates that says %s", name, err, tc.says)
		}
	}
}

// TestAServerThatStartsLater: Open waits for a server that starts later, until the caller's
// timeout.
func TestAServerThatStartsLater(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	why := errors.New("the test ends the wait")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 3*reachPause, why)
	defer cancel()
	_, err = Open(ctx, Config{Endpoint: "http://" + address, Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, why) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("Open() = %v, want the cause and what was tried", err)
	}
}
