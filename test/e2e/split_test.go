package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedComponentsAlone runs controller, scheduler and riklet as
// processes of their own, which meet over TLS only.
func TestPrivilegedComponentsAlone(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Split: true})
	image := c.Busybox()
	apply(t, c, rikcluster.Manifest("web", image, "echo here; exec sleep 100000", ""), "web", 2)
	waitReady(c, "web")
	for _, in := range instancesOf(c, "web") {
		if got := c.Rikctl("logs", in.Name); got != "here\n" {
			t.Errorf("log of %s is %q", in.Name, got)
		}
	}

	t.Run("fault 20: a second machine of the same name is refused", func(t *testing.T) {
		c := c.In(t)
		machine := shortDir(t)
		if err := os.WriteFile(filepath.Join(machine, "machine-id"), []byte(strings.Repeat("ab", 16)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		// Another machine: the same host with another /etc/machine-id.
		script := `mount --bind "$0/machine-id" /etc/machine-id && exec "$@"`
		out := rikcluster.Command(t, "unshare", "--mount", "--", "/bin/sh", "-c", script, machine,
			filepath.Join(c.Bin, "riklet"), "--server", "https://127.0.0.1:5000", "--token-file", c.TokenFile(),
			"--network", "none", "--node-name", "node-1", "--state-dir", filepath.Join(machine, "state"), "--run-dir", filepath.Join(machine, "run"))
		if out.Code == 0 || !strings.Contains(out.Stderr, "another machine has") {
			t.Errorf("the second riklet: code %d\n%s", out.Code, out.Stderr)
		}
		purge := rikcluster.Run(t, "riklet", "purge", "--state-dir", filepath.Join(machine, "state"), "--run-dir", filepath.Join(machine, "run"))
		if purge.Err != nil {
			t.Error(purge.Err)
		}
	})
	t.Run("a token of nobody is refused", func(t *testing.T) {
		c := c.In(t)
		dir := shortDir(t)
		raw, err := os.ReadFile(c.TokenFile())
		if err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(strings.TrimSpace(string(raw)), ".")
		parts[3] = strings.Repeat("A", len(parts[3]))
		out := rikcluster.Run(t, "riklet", "--server", "https://127.0.0.1:5000", "--token", strings.Join(parts, "."),
			"--network", "none", "--node-name", "node-2", "--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run"))
		if out.Code == 0 || !strings.Contains(out.Stderr, "token") || strings.Contains(out.Stderr, parts[3]) {
			t.Errorf("the riklet with a wrong token: code %d\n%s", out.Code, out.Stderr)
		}
		purge := rikcluster.Run(t, "riklet", "purge", "--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run"))
		if purge.Err != nil {
			t.Error(purge.Err)
		}
	})
	c.Rikctl("delete", "workload", "web")
}

// shortDir is a folder whose path leaves room for the sockets in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rik")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
