package app

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/rpc/nodev1"
)

func serverFlags(t *testing.T, args ...string) *flags {
	t.Helper()
	f := newFlags()
	s := pflag.NewFlagSet("server", pflag.ContinueOnError)
	f.server(s)
	if err := s.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &f
}

// TestSharedSettings uses the settings of the other servers, and refuses flags that differ.
func TestSharedSettings(t *testing.T) {
	t.Parallel()
	first := serverFlags(t, "--cluster-cidr", "10.70.0.0/16").sharedSettings()
	joining := serverFlags(t)
	if err := joining.applySettings(first); err != nil {
		t.Fatal(err)
	}
	if got := joining.control.Network.ClusterCIDR; got != "10.70.0.0/16" {
		t.Errorf("--cluster-cidr = %s after joining", got)
	}
	if err := serverFlags(t, "--cluster-cidr", "10.70.0.0/16").applySettings(first); err != nil {
		t.Errorf("the same flag: %v", err)
	}
	err := serverFlags(t, "--cluster-cidr", "10.71.0.0/16", "--cluster-domain", "other").applySettings(first)
	if err == nil || !strings.Contains(err.Error(), "--cluster-cidr") || !strings.Contains(err.Error(), "--cluster-domain") {
		t.Errorf("other flags: %v, want both of them", err)
	}
	first["of-a-newer-version"] = "x"
	if err := serverFlags(t).applySettings(first); err != nil {
		t.Errorf("an unknown setting: %v", err)
	}
}

// TestSaveJoin writes what servers share with private modes, and nothing else. It refuses the keys of
// another cluster than that of the directory.
func TestSaveJoin(t *testing.T) {
	t.Parallel()
	response := func(cluster string) *nodev1.JoinServerResponse {
		r := &nodev1.JoinServerResponse{Files: map[string][]byte{"../outside": []byte("x"), "other": []byte("x")}, Settings: map[string]string{"cluster-cidr": "10.70.0.0/16"}}
		for _, name := range apiserver.Shared() {
			r.Files[name] = []byte(name)
		}
		identity, err := json.Marshal(clusterid.File{Identity: clusterid.Identity{ID: cluster}})
		if err != nil {
			t.Fatal(err)
		}
		r.Files[clusterid.FileName] = identity
		return r
	}
	f := serverFlags(t, "--data-dir", filepath.Join(t.TempDir(), "data"))
	for range 2 { // the second attempt after an interrupted one
		if err := f.saveJoin(response("a")); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range apiserver.Shared() {
		info, err := os.Stat(filepath.Join(f.control.DataDir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", name, info, err)
		}
	}
	for _, name := range []string{"../outside", "other"} {
		if _, err := os.Stat(filepath.Join(f.control.DataDir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was written: %v", name, err)
		}
	}
	if stored, err := readSettings(f.control.DataDir); err != nil || stored["cluster-cidr"] != "10.70.0.0/16" {
		t.Errorf("readSettings() = %v, %v", stored, err)
	}
	if err := f.saveJoin(response("b")); err == nil || !strings.Contains(err.Error(), "belongs to the cluster a") {
		t.Errorf("joining another cluster = %v, want an error", err)
	}
	incomplete := response("a")
	delete(incomplete.Files, "pki/ca.key")
	if err := f.saveJoin(incomplete); err == nil {
		t.Error("an answer without a key is accepted")
	}
}
