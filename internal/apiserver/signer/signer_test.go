package signer_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/cert"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/leak"
	"rik.dev/rik/internal/testkit/served"
)

func TestMain(m *testing.M) { os.Exit(leak.After(kcptest.RunMain(m))) }

// request creates a request on the server and approves it.
func request(t *testing.T, s *kcptest.Server, subject pkix.Name, change func(*certificatesv1.CertificateSigningRequestSpec)) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := cert.MakeCSR(key, &subject, []string{"kubernetes"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := certificatesv1.CertificateSigningRequestSpec{
		Request: raw, SignerName: workloadv1alpha1.SyncerSigner, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
	}
	if change != nil {
		change(&spec)
	}
	requests := s.Client.CertificatesV1().CertificateSigningRequests()
	made, err := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Spec: spec,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	}}
	if _, err := requests.UpdateApproval(t.Context(), made.Name, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return made.Name
}

// outcome waits for the certificate, or the message of the refusal.
func outcome(t *testing.T, s *kcptest.Server, name string) (certificate *x509.Certificate, refusal string) {
	t.Helper()
	var raw []byte
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, served.Timeout, true, func(ctx context.Context) (bool, error) {
		r, err := s.Client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range r.Status.Conditions {
			if c.Type == certificatesv1.CertificateFailed {
				refusal = c.Message
			}
		}
		raw = r.Status.Certificate
		return raw != nil || refusal != "", nil
	})
	if err != nil || refusal != "" {
		return nil, errors.Join(err, errors.New(refusal)).Error()
	}
	block, _ := pem.Decode(raw)
	if certificate, err = x509.ParseCertificate(block.Bytes); err != nil {
		t.Fatal(err)
	}
	return certificate, ""
}

// register creates a Cluster and returns its UID.
func register(t *testing.T, s *kcptest.Server, name string) string {
	t.Helper()
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	made, err := client.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": workloadv1alpha1.SchemeGroupVersion.String(), "kind": "Cluster", "metadata": map[string]any{"name": name},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(made.GetUID())
}

// TestSignsForSyncers: the certificate contains the syncer and its Cluster, and no other
// requested property.
func TestSignsForSyncers(t *testing.T) {
	t.Parallel()
	s := kcptest.Shared(t)
	seconds := int32(3600)
	uid := register(t, s, "signed")
	name := request(t, s, pkix.Name{CommonName: "system:rik:syncer:signed", Locality: []string{"x"}}, func(spec *certificatesv1.CertificateSigningRequestSpec) {
		spec.ExpirationSeconds = &seconds
	})
	certificate, refusal := outcome(t, s, name)
	if refusal != "" {
		t.Fatal(refusal)
	}
	if got := certificate.Subject; got.CommonName != "system:rik:syncer:signed" || len(got.Names) != 2 || !slices.Equal(pki.UIDs(got), []string{uid}) {
		t.Errorf("subject = %s, want the syncer of the Cluster with UID %s only", got, uid)
	}
	again := request(t, s, pki.User("system:rik:syncer:signed", uid), nil)
	if _, refusal := outcome(t, s, again); refusal != "" {
		t.Errorf("asked with the UID: %s", refusal)
	}
	if len(certificate.DNSNames) > 0 || certificate.IsCA || len(certificate.ExtKeyUsage) != 1 || certificate.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("names %v, CA %v, usages %v", certificate.DNSNames, certificate.IsCA, certificate.ExtKeyUsage)
	}
	if left := time.Until(certificate.NotAfter); left > time.Hour {
		t.Errorf("it is good for %s, an hour was asked for", left)
	}
}

func TestRefusesOthers(t *testing.T) {
	t.Parallel()
	s := kcptest.Shared(t)
	uid := register(t, s, "east")
	twice := pki.User("system:rik:syncer:east", uid)
	twice.ExtraNames = append(twice.ExtraNames, twice.ExtraNames...)
	for name, tc := range map[string]struct {
		subject pkix.Name
		change  func(*certificatesv1.CertificateSigningRequestSpec)
		want    string
	}{
		"administrator":   {pkix.Name{CommonName: "rik:admin"}, nil, "common name"},
		"no cluster":      {pkix.Name{CommonName: "system:rik:syncer:"}, nil, "common name"},
		"a group":         {pkix.Name{CommonName: "system:rik:syncer:east", Organization: []string{"x:masters"}}, nil, "a syncer has no groups"},
		"no such cluster": {pkix.Name{CommonName: "system:rik:syncer:absent"}, nil, "the Cluster absent does not exist"},
		"one that was":    {pki.User("system:rik:syncer:east", "another"), nil, "has the UID " + uid},
		"two UIDs":        {twice, nil, "a syncer has only the UID"},
		"a server": {pkix.Name{CommonName: "system:rik:syncer:east"}, func(spec *certificatesv1.CertificateSigningRequestSpec) {
			spec.Usages = append(spec.Usages, certificatesv1.UsageServerAuth)
		}, "server auth"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, refusal := outcome(t, s, request(t, s, tc.subject, tc.change)); !strings.Contains(refusal, tc.want) {
				t.Errorf("refusal = %q, want %q", refusal, tc.want)
			}
		})
	}
}
