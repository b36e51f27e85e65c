package pki

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/atomicfile"
)

func newAuthorityForTest(t *testing.T) *Authority {
	t.Helper()
	a, err := LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatalf("LoadOrCreate: %v", err)
	}
	return a
}

func TestLoadOrCreateKeepsTheAuthority(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	first, err := LoadOrCreate(dir)
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	second, err := LoadOrCreate(dir)
	if err != nil {
		t.Fatalf("loading: %v", err)
	}
	if !bytes.Equal(first.CertificatePEM(), second.CertificatePEM()) {
		t.Error("the second load gave another certificate")
	}
	if first.Hash() != second.Hash() || !strings.HasPrefix(first.Hash(), "sha256:") || len(first.Hash()) != len("sha256:")+64 {
		t.Errorf("Hash() = %q then %q", first.Hash(), second.Hash())
	}
	assertModes(t, dir)
}

func assertModes(t *testing.T, dir string) {
	t.Helper()
	want := map[string]fs.FileMode{dir: 0o700, filepath.Join(dir, KeyFile): 0o600, filepath.Join(dir, CertificateFile): 0o600}
	for path, mode := range want {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != mode {
			t.Errorf("mode of %s = %04o, want %04o", path, got, mode)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 {
		t.Errorf("directory holds %v, want the two files alone", entries)
	}
}

func TestLoadOrCreateRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, dir string)
		want  error
		says  string
	}{
		{"key missing", func(t *testing.T, dir string) { remove(t, dir, KeyFile) }, ErrIncomplete, "ca.key is missing"},
		{"certificate missing", func(t *testing.T, dir string) { remove(t, dir, CertificateFile) }, ErrIncomplete, "ca.crt is missing"},
		{"key readable", func(t *testing.T, dir string) { chmod(t, filepath.Join(dir, KeyFile), 0o640) }, ErrExposed, "chmod 0600"},
		{"garbage certificate", func(t *testing.T, dir string) { write(t, dir, CertificateFile, []byte("hello")) }, ErrForeign, "no PEM certificate"},
		{"garbage key", func(t *testing.T, dir string) { write(t, dir, KeyFile, []byte("hello")) }, ErrForeign, "no PEM private key"},
		{"key of another authority", func(t *testing.T, dir string) {
			key, err := newKey()
			if err != nil {
				t.Fatal(err)
			}
			keyPEM, err := encodeKey(key)
			if err != nil {
				t.Fatal(err)
			}
			write(t, dir, KeyFile, keyPEM)
		}, ErrForeign, "does not belong"},
		{"a leaf in its place", func(t *testing.T, dir string) {
			certPEM, keyPEM, err := newAuthorityForTest(t).IssueServer([]string{"localhost"}, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			write(t, dir, CertificateFile, certPEM)
			write(t, dir, KeyFile, keyPEM)
		}, ErrForeign, "is not a CA certificate"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if _, err := LoadOrCreate(dir); err != nil {
				t.Fatal(err)
			}
			tc.spoil(t, dir)
			_, err := LoadOrCreate(dir)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("LoadOrCreate() = %v, want %v saying %q", err, tc.want, tc.says)
			}
		})
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, dir, name string, content []byte) {
	t.Helper()
	if err := atomicfile.Write(filepath.Join(dir, name), content); err != nil {
		t.Fatal(err)
	}
}

func TestSignCSRTakesOnlyTheKey(t *testing.T) {
	t.Parallel()
	a := newAuthorityForTest(t)
	csrPEM, keyPEM, err := NewCSR(pkix.Name{CommonName: "root", Organization: []string{"system:masters"}})
	if err != nil {
		t.Fatal(err)
	}
	want := pkix.Name{CommonName: "rik:node:alpha", Organization: []string{"rik:nodes"}}
	certPEM, err := a.SignCSR(csrPEM, want, time.Hour)
	if err != nil {
		t.Fatalf("SignCSR: %v", err)
	}
	if _, err := parsePair(certPEM, keyPEM); err != nil {
		t.Errorf("the certificate does not fit the requester's key: %v", err)
	}
	got, err := ParseCertificate(certPEM)
	if err != nil {
		t.Fatal(err)
	}
	if got.Subject.String() != want.String() {
		t.Errorf("subject = %s, want %s", got.Subject, want)
	}
	if got.IsCA {
		t.Error("a signed leaf may sign others")
	}
	verify(t, a, got, x509.ExtKeyUsageClientAuth, true)
	verify(t, a, got, x509.ExtKeyUsageServerAuth, false)
	verify(t, newAuthorityForTest(t), got, x509.ExtKeyUsageClientAuth, false)
}

func verify(t *testing.T, a *Authority, c *x509.Certificate, usage x509.ExtKeyUsage, want bool) {
	t.Helper()
	_, err := c.Verify(x509.VerifyOptions{Roots: a.Pool(), KeyUsages: []x509.ExtKeyUsage{usage}})
	if (err == nil) != want {
		t.Errorf("Verify(usage %d) = %v, want success %t", usage, err, want)
	}
}

func TestSignCSRRefuses(t *testing.T) {
	t.Parallel()
	a := newAuthorityForTest(t)
	good, _, err := NewCSR(pkix.Name{CommonName: "x"})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		csr      []byte
		validity time.Duration
		says     string
	}{
		{"empty", nil, time.Hour, "no PEM certificate request"},
		{"a certificate", a.CertificatePEM(), time.Hour, "no PEM certificate request"},
		{"too long", bytes.Repeat([]byte("x"), maxCSRBytes+1), time.Hour, "and the limit is"},
		{"not DER", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")}), time.Hour, "parsing"},
		{"tampered", tamper(t, good), time.Hour, "signature"},
		{"weak RSA", csrWith(t, weakRSA(t)), time.Hour, "too weak"},
		{"weak curve", csrWith(t, weakCurve(t)), time.Hour, "too weak"},
		{"no validity", good, 0, "positive"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := a.SignCSR(tc.csr, pkix.Name{CommonName: "n"}, tc.validity)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("SignCSR() = %v, want an error saying %q", err, tc.says)
			}
		})
	}
}

// tamper changes the subject in the signed part of a request.
func tamper(t *testing.T, csrPEM []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(csrPEM)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(block.Bytes)
	at := bytes.Index(changed, request.RawSubject)
	changed[at+len(request.RawSubject)-1] ^= 1
	return pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: changed})
}

func weakRSA(t *testing.T) any {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func weakCurve(t *testing.T) any {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func csrWith(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestIssueServer(t *testing.T) {
	t.Parallel()
	a := newAuthorityForTest(t)
	certPEM, keyPEM, err := a.IssueServer([]string{"localhost", "127.0.0.1", "::1"}, 20*365*24*time.Hour)
	if err != nil {
		t.Fatalf("IssueServer: %v", err)
	}
	if _, err := parsePair(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	got, err := ParseCertificate(certPEM)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		if err := got.VerifyHostname(host); err != nil {
			t.Errorf("VerifyHostname(%q) = %v", host, err)
		}
	}
	if got.NotAfter.After(a.certificate.NotAfter) {
		t.Errorf("leaf ends %s, after its authority at %s", got.NotAfter, a.certificate.NotAfter)
	}
	if _, _, err := a.IssueServer(nil, time.Hour); err == nil {
		t.Error("IssueServer without hosts succeeded")
	}
}

// authorityFrom writes an authority with the given validity period.
func authorityFrom(t *testing.T, dir string, from, to time.Time) {
	t.Helper()
	a := newAuthorityForTest(t)
	template := *a.certificate
	template.NotBefore, template.NotAfter = from, to
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := encodeKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, CertificateFile, encodeCertificate(der))
	write(t, dir, KeyFile, keyPEM)
}

func TestAuthorityOfAnotherTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	dir := t.TempDir()
	authorityFrom(t, dir, now.Add(-48*time.Hour), now.Add(-24*time.Hour))
	_, err := LoadOrCreate(dir)
	if !errors.Is(err, ErrExpired) {
		t.Fatalf("LoadOrCreate() = %v, want ErrExpired", err)
	}
	for _, want := range []string{CertificateFile, "If the clock is wrong", "--accept-keys"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("LoadOrCreate() = %v, want it to say %q", err, want)
		}
	}
	for name, tc := range map[string]struct {
		from, to time.Time
		says     string
	}{
		"not yet valid": {now.Add(24 * time.Hour), now.Add(authorityLifetime), "set the clock if it is wrong"},
		"expires soon":  {now.Add(-time.Hour), now.Add(24 * time.Hour), "expires on"},
		"fine":          {now.Add(-time.Hour), now.Add(authorityLifetime), ""},
	} {
		dir := t.TempDir()
		authorityFrom(t, dir, tc.from, tc.to)
		a, err := LoadOrCreate(dir)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := a.Warning(now); (got == "") != (tc.says == "") || !strings.Contains(got, tc.says) {
			t.Errorf("%s: Warning() = %q, want it to say %q", name, got, tc.says)
		}
	}
}

func TestOthersAreKeptOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	chmod(t, dir, 0o777)
	a, err := LoadOrCreate(dir)
	if err != nil {
		t.Fatal(err)
	}
	assertModes(t, dir)
	chmod(t, dir, 0o777)
	if _, err := Load(dir); err != nil {
		t.Fatal(err)
	}
	assertModes(t, dir)
	if wasOpen, err := PrivateDir(dir); wasOpen || err != nil {
		t.Errorf("PrivateDir() of a private directory = %v, %v", wasOpen, err)
	}
	chmod(t, dir, 0o733)
	if wasOpen, err := PrivateDir(dir); !wasOpen || err != nil {
		t.Errorf("PrivateDir() of a directory that others may write = %v, %v", wasOpen, err)
	}
	// A leaf whose key other users can read is not used any more.
	cfg := LeafConfig{
		CertFile: filepath.Join(dir, "leaf.crt"), KeyFile: filepath.Join(dir, "leaf.key"),
		Issue: func(context.Context) ([]byte, []byte, error) { return a.IssueServer([]string{"localhost"}, time.Hour) },
	}
	first, err := NewLeaf(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	chmod(t, cfg.KeyFile, 0o644)
	second, err := NewLeaf(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, before := first.PEM()
	if _, after := second.PEM(); bytes.Equal(before, after) {
		t.Error("a key that others could read is used again")
	}
	if err := RefuseExposed(cfg.KeyFile); err != nil {
		t.Errorf("the new key: %v", err)
	}
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := LoadOrCreate(dir)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.Discard(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err != nil {
		t.Errorf("an authority that was loaded is gone: %v", err)
	}
	for range 2 {
		if err := a.Discard(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); !errors.Is(err, ErrMissing) {
			t.Errorf("Load() = %v, want ErrMissing", err)
		}
	}
}
