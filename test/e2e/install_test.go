package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/program"
)

// TestPrivilegedInstall installs into a new directory, tests the installed files, and removes
// them again.
func TestPrivilegedInstall(t *testing.T) {
	privileged.Require(t)
	t.Parallel()
	dest := t.TempDir()
	install(t, dest, "install")
	bin := filepath.Join(dest, "usr/local/bin")
	for name, want := range map[string]string{"rikctl": "rollout", "rik": "server", "riklet": "--server"} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, name), "--help").CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s --help: %v, says %q, want %q in it", name, err, out, want)
		}
	}
	units, err := filepath.Glob(filepath.Join(dest, "usr/local/lib/systemd/system/*.service"))
	if err != nil || len(units) != 1 {
		t.Fatalf("the units are %v, %v, want that of the server", units, err)
	}
	for _, unit := range units {
		started := value(t, unit, "ExecStart=")
		if info, err := os.Stat(filepath.Join(dest, started)); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s starts %s: %v", filepath.Base(unit), started, err)
		}
		// Instances survive a restart of their agent.
		if mode := value(t, unit, "KillMode="); mode != "process" {
			t.Errorf("%s has KillMode %q, want process", filepath.Base(unit), mode)
		}
	}
	// Files of other origin stay.
	foreign := filepath.Join(bin, "rik")
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	install(t, dest, "uninstall")
	var left []string
	err = filepath.WalkDir(dest, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, path)
		}
		return err
	})
	if err != nil || len(left) != 1 || left[0] != foreign {
		t.Errorf("after uninstall there are %v, %v, want %s alone", left, err, foreign)
	}
}

func install(t *testing.T, dest, what string) {
	t.Helper()
	bin, err := program.Dir()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"install", "server"}
	if what == "uninstall" {
		args = []string{"uninstall"}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "rik"), append(args, "--root", dest)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("rik %s: %v\n%s", what, err, out)
	}
}

// value returns the first word of a setting in a unit.
func value(t *testing.T, unit, key string) string {
	t.Helper()
	data, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strings.Fields(rest)[0]
		}
	}
	return ""
}
