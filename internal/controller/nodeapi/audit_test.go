package nodeapi

import (
	"crypto/x509/pkix"
	"net/http"
	"strings"
	"sync"
	"testing"

	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/rpc/nodev1"
)

// recorder stores the audit entries.
type recorder struct {
	mu      sync.Mutex
	entries []AuditEntry
}

func (r *recorder) record(e AuditEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, e)
}

func (r *recorder) last() AuditEntry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) == 0 {
		return AuditEntry{}
	}
	return r.entries[len(r.entries)-1]
}

func TestJoinsAndRenewalsAreRecorded(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	var r recorder
	w.server.cfg.Audit = r.record

	csr, _, err := pki.NewCSR(pkix.Name{CommonName: "any"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := w.join(t, "n1", "m1")
	if err != nil {
		t.Fatal(err)
	}
	if e := r.last(); e.Verb != "join" || e.Node != "n1" || !strings.HasPrefix(e.User, UserOfToken) || e.Code != http.StatusOK || e.From != "127.0.0.1" || e.Annotations[AnnotationMachine] != "m1" {
		t.Errorf("a join is recorded as %+v", e)
	}
	if _, err := nodev1.NewNodeClient(w.dial(t, pair)).Renew(t.Context(), &nodev1.RenewRequest{CsrPem: csr}); err != nil {
		t.Fatal(err)
	}
	if e := r.last(); e.Verb != "renew" || e.User != "rik:node:n1" || e.Code != http.StatusOK {
		t.Errorf("a renewal is recorded as %+v", e)
	}
	if _, err := w.join(t, "n1", "m2"); err == nil {
		t.Fatal("another machine took the name")
	}
	if e := r.last(); !strings.HasPrefix(e.User, UserOfToken) || e.Code != http.StatusConflict || e.Message == "" {
		t.Errorf("a refused name is recorded as %+v", e)
	}
	if _, err := nodev1.NewJoinClient(w.dial(t, nil)).Join(t.Context(), &nodev1.JoinRequest{Token: "nonsense", NodeName: "n3", MachineId: "m"}); err == nil {
		t.Fatal("a bad token was accepted")
	}
	if e := r.last(); e.User != "" || e.Code != http.StatusUnauthorized || e.Node != "n3" {
		t.Errorf("a bad token is recorded as %+v", e)
	}
}
