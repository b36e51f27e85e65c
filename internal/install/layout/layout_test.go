package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// TestNoFileIsInTwoPackages: dpkg and rpm refuse two packages with the same file.
func TestNoFileIsInTwoPackages(t *testing.T) {
	t.Parallel()
	bundle := fstest.MapFS{}
	for _, p := range Packages() {
		bundle["doc/"+string(p)+"/copyright"] = &fstest.MapFile{Data: []byte("c")}
	}
	owner := map[string]Package{}
	for _, p := range Packages() {
		files, err := Files(p, Under("/usr"), bundle)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if other, found := owner[f.Path]; found {
				t.Errorf("%s is in %s and %s", f.Path, other, p)
			}
			owner[f.Path] = p
			if f.Package != p || (f.Source == "") == (f.Kind == Program || f.Kind == Data) || (f.Target != "") != (f.Kind == Link) {
				t.Errorf("%s has a %+v", p, f)
			}
		}
		if owner["/usr/share/doc/"+string(p)+"/copyright"] != p {
			t.Errorf("%s has no copyright file", p)
		}
	}
	for _, path := range []string{"/usr/lib/rik/rik", "/usr/bin/rik", "/usr/bin/riklet", "/usr/bin/rikctl", "/usr/lib/rik/runc", "/usr/lib/systemd/system/rik.service", "/etc/rik/agent.env"} {
		if owner[path] == "" {
			t.Errorf("no package has %s", path)
		}
	}
}

// TestUnitsAreValid asks systemd-analyze, where there is one.
func TestUnitsAreValid(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("this machine has no systemd-analyze")
	}
	for name, unit := range map[string]File{
		"server": Unit(Server, Under("/usr"), UnitOptions{}), "node": Unit(Node, Under("/usr"), UnitOptions{}),
		"control plane": Unit(Server, Under("/usr"), UnitOptions{ControlPlaneOnly: true}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), filepath.Base(unit.Path))
			// The program and the page need not be on this machine.
			text := strings.NewReplacer("/usr/lib/rik/riklet", "/bin/true", "/usr/lib/rik/rik", "/bin/true", "Documentation=man:", "#").Replace(unit.Content)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), program, "verify", path).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v:\n%s\n%s", err, out, text)
			}
		})
	}
}

// TestUnitsAreWhereSystemdReadsThem: the paths are those of systemd.unit(5).
func TestUnitsAreWhereSystemdReadsThem(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"/usr": "/usr/lib/systemd/system/rik.service", "/usr/local": "/usr/local/lib/systemd/system/rik.service", "/opt/rik": "/etc/systemd/system/rik.service",
	} {
		if got := Unit(Server, Under(prefix), UnitOptions{}).Path; got != want {
			t.Errorf("the unit with the prefix %s is %s, want %s", prefix, got, want)
		}
	}
}
