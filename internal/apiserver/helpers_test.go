package apiserver_test

import (
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/testkit/apitest"
)

func newAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// rows splits a table of /proc into fields.
func rows(t *testing.T, table string) [][]string {
	t.Helper()
	content, err := os.ReadFile(table)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var out [][]string
	for line := range strings.Lines(string(content)) {
		out = append(out, strings.Fields(line))
	}
	return out
}

// ownSockets returns the inodes of this process's sockets.
func ownSockets(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	inodes := map[string]bool{}
	for _, file := range files {
		target, err := os.Readlink(file)
		if err != nil {
			continue // closed in the meantime
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return inodes
}

// clientOf connects as a user with only a certificate.
func clientOf(t *testing.T, s *apitest.Server, name string, groups ...string) *rest.Config {
	t.Helper()
	certPEM, keyPEM, err := s.API.Authority().IssueClient(pkix.Name{CommonName: name, Organization: groups}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.CertData, config.KeyData, config.QPS = certPEM, keyPEM, -1
	return config
}

func grant(t *testing.T, s *apitest.Server, namespace, role, user string) {
	t.Helper()
	_, err := s.Client.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
