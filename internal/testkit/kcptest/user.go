package kcptest

import (
	"crypto/x509/pkix"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// As connects as a user with a certificate of the kcp's authority, and without a
// client-side rate limit.
func As(tb testing.TB, s *Server, user string, groups ...string) *rest.Config {
	tb.Helper()
	certPEM, keyPEM, err := s.API.Authority().IssueClient(pkix.Name{CommonName: user, Organization: groups}, time.Hour)
	if err != nil {
		tb.Fatalf("issuing a certificate for %s: %v", user, err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.CertData, config.KeyData, config.QPS = certPEM, keyPEM, -1
	config.WarningHandler = rest.NoWarnings{}
	return config
}

// AsSyncer connects as the syncer of a cluster.
func AsSyncer(tb testing.TB, s *Server, cluster string) *rest.Config {
	tb.Helper()
	return As(tb, s, workloadv1alpha1.SyncerUserPrefix+cluster)
}
