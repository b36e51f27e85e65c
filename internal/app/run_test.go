package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/authority"
	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/controller/network"
	"rik.dev/rik/internal/pki"
)

// TestARefusedStartLeavesNoAuthority checks that a refused start removes its new authority,
// which the next start would use as the cluster's.
func TestARefusedStartLeavesNoAuthority(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// The file of a server from before clusters had identities, whose datastore is missing.
	if err := os.WriteFile(filepath.Join(dir, apiserver.NodeTokenFile), []byte("token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFlags()
	f.noAgent = true
	f.control.NodeValidity, f.control.ReplaceAfter = time.Hour, time.Minute
	f.control.Network = network.Options{ClusterCIDR: network.DefaultClusterCIDR, NodeCIDRSize: network.DefaultNodeCIDRSize, ServiceCIDR: network.DefaultServiceCIDR, Domain: network.DefaultDomain}
	f.control.DataDir, f.control.BindAddress = dir, "127.0.0.1"
	f.control.Port, f.control.NodePort, f.scheduler.WorkerPort = 0, 0, 0
	if err := runServer(t.Context(), &f, slog.New(slog.DiscardHandler)); !errors.Is(err, clusterid.ErrDatastore) {
		t.Fatalf("runServer() = %v, want ErrDatastore", err)
	}
	if _, err := pki.Load(filepath.Join(dir, authority.Dir)); !errors.Is(err, pki.ErrMissing) {
		t.Errorf("the authority after a refused start: %v, want ErrMissing", err)
	}
}
