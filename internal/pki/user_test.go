package pki

import (
	"crypto/x509/pkix"
	"slices"
	"testing"
	"time"
)

// TestUserKeepsItsUID checks that name and UID are in the certificate and in a request.
func TestUserKeepsItsUID(t *testing.T) {
	t.Parallel()
	a := newAuthorityForTest(t)
	certPEM, _, err := a.IssueClient(User("system:rik:syncer:east", "1234"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := ParseCertificate(certPEM)
	if err != nil {
		t.Fatal(err)
	}
	if got := UIDs(certificate.Subject); !slices.Equal(got, []string{"1234"}) || certificate.Subject.CommonName != "system:rik:syncer:east" {
		t.Errorf("the certificate is for %q with the UIDs %q", certificate.Subject.CommonName, got)
	}
	certPEM, _, err = a.IssueClient(pkix.Name{CommonName: "jane"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if certificate, err = ParseCertificate(certPEM); err != nil {
		t.Fatal(err)
	}
	if got := UIDs(certificate.Subject); len(got) > 0 {
		t.Errorf("a certificate without a UID has %q", got)
	}
}
