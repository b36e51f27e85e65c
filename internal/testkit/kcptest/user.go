package kcptest

import (
	"crypto/x509/pkix"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/pki"
)

// As connects as a user with a certificate of the kcp's authority, and without a
// client-side rate limit.
func As(tb testing.TB, s *Server, user string, groups ...string) *rest.Config {
	tb.Helper()
	return as(tb, s, pkix.Name{CommonName: user, Organization: groups})
}

func as(tb testing.TB, s *Server, user pkix.Name) *rest.Config {
	tb.Helper()
	certPEM, keyPEM, err := s.API.Authority().IssueClient(user, time.Hour)
	if err != nil {
		tb.Fatalf("issuing a certificate for %s: %v", user, err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.CertData, config.KeyData, config.QPS = certPEM, keyPEM, -1
	config.WarningHandler = rest.NoWarnings{}
	return config
}

// AsSyncer connects as the syncer of the Cluster that there is of that name.
func AsSyncer(tb testing.TB, s *Server, cluster string) *rest.Config {
	tb.Helper()
	objects, err := metadata.NewForConfig(s.Config)
	if err != nil {
		tb.Fatal(err)
	}
	found, err := objects.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")).Get(tb.Context(), cluster, metav1.GetOptions{})
	if err != nil {
		tb.Fatalf("looking for the Cluster of a syncer: %v", err)
	}
	return AsSyncerOf(tb, s, cluster, found.UID)
}

// AsSyncerOf connects as the syncer of a Cluster of that UID, whether there is one or
// not.
func AsSyncerOf(tb testing.TB, s *Server, cluster string, uid types.UID) *rest.Config {
	tb.Helper()
	return as(tb, s, pki.User(workloadv1alpha1.SyncerUserPrefix+cluster, string(uid)))
}
