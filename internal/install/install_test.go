package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/install/layout"
)

// machine is a Host that records its calls.
type machine struct {
	calls   []string
	stopErr error
	// states are returned one after the other, and the last one from then on. Without them the
	// service runs.
	states []UnitState
}

func (m *machine) did(what, name string) error {
	m.calls = append(m.calls, what+" "+name)
	return nil
}

func (m *machine) Usable() error                              { return m.did("usable", "") }
func (m *machine) Start(_ context.Context, unit string) error { return m.did("start", unit) }
func (m *machine) State(context.Context, string) (UnitState, error) {
	if len(m.states) == 0 {
		return UnitState{Invocation: fmt.Sprint(len(m.calls)), Active: "active", Sub: "running"}, nil
	}
	s := m.states[0]
	if len(m.states) > 1 {
		m.states = m.states[1:]
	}
	return s, nil
}
func (m *machine) Stop(_ context.Context, unit string) error {
	return errors.Join(m.did("stop", unit), m.stopErr)
}
func (m *machine) Reload(context.Context) error                 { return m.did("reload", "") }
func (m *machine) RemoveUser(_ context.Context, n string) error { return m.did("remove user", n) }
func (m *machine) EnsureUser(_ context.Context, n, _ string) (bool, error) {
	return true, m.did("create user", n)
}

// newBundle writes a bundle whose programs have the text of a version.
func newBundle(t *testing.T, version string, leaveOut ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"rik", "rikctl", "riklet", "rik-shim", "rik-unpack", "rik-dns", "runc", "hello", "guest/kernel", "man/rik/man8/rik.8", "completions/rikctl/fish/vendor_completions.d/rikctl.fish"} {
		if !slices.Contains(leaveOut, name) {
			writeFile(t, filepath.Join(dir, name), name+" "+version)
		}
	}
	return dir
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// tree returns what is below a directory: the mode and the content or the target of each name.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " " + target
		case d.Type().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + string(content)
		}
		found[strings.TrimPrefix(path, root)] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func install(t *testing.T, o Options, host Host, version string) {
	t.Helper()
	if _, err := Install(t.Context(), o, host, version); err != nil {
		t.Fatal(err)
	}
}

func TestInstallUpgradeUninstall(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	// The machine's own directories, and a file that only looks like rik's.
	writeFile(t, filepath.Join(root, "usr/local/bin/ours"), "another program")
	writeFile(t, filepath.Join(root, "usr/local/share/man/man8/other.8"), "another page")
	for _, dir := range []string{"etc", "var/lib", "run", "usr/local/lib"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := tree(t, root)
	host := &machine{}
	o := Options{Package: layout.Server, Prefix: "/usr/local", Root: root, Bundle: newBundle(t, "1"), Settings: []Setting{{"RIK_SERVER_FLAGS", "--tls-san a.example"}}}
	install(t, o, host, "1")
	first := tree(t, root)
	for path, want := range map[string]string{
		"/usr/local/lib/rik/rik":                                 "-rwxr-xr-x rik 1",
		"/usr/local/lib/rik/runc":                                "-rwxr-xr-x runc 1",
		"/usr/local/lib/rik/guest/kernel":                        "-rw-r--r-- guest/kernel 1",
		"/usr/local/bin/rikctl":                                  "Lrwxrwxrwx ../lib/rik/rikctl",
		"/usr/local/share/man/man8/rik.8":                        "-rw-r--r-- man/rik/man8/rik.8 1",
		"/usr/local/share/fish/vendor_completions.d/rikctl.fish": "-rw-r--r-- completions/rikctl/fish/vendor_completions.d/rikctl.fish 1",
	} {
		if first[path] != want {
			t.Errorf("%s is %q, want %q", path, first[path], want)
		}
	}
	if c := first["/etc/rik/server.env"]; !strings.HasPrefix(c, "-rw------- ") || !strings.Contains(c, "\nRIK_SERVER_FLAGS=\"--tls-san a.example\"\n") {
		t.Errorf("the configuration is %q", c)
	}
	if u := first["/usr/local/lib/systemd/system/rik.service"]; !strings.Contains(u, "ExecStart=/usr/local/lib/rik/rik server $RIK_SERVER_FLAGS\n") || !strings.Contains(u, "KillMode=process") {
		t.Errorf("the unit is %q", u)
	}
	if _, found := first["/usr/local/lib/systemd/system/riklet.service"]; found {
		t.Error("a server has the unit of a node")
	}
	// An upgrade keeps the configuration, and removes what the new version does not have.
	o.Bundle, o.Settings = newBundle(t, "2", "guest/kernel"), nil
	install(t, o, host, "2")
	second := tree(t, root)
	if second["/usr/local/lib/rik/rik"] != "-rwxr-xr-x rik 2" || second["/etc/rik/server.env"] != first["/etc/rik/server.env"] {
		t.Errorf("after the upgrade rik is %q, and the configuration %q", second["/usr/local/lib/rik/rik"], second["/etc/rik/server.env"])
	}
	if _, found := second["/usr/local/lib/rik/guest/kernel"]; found {
		t.Error("the kernel of the version before is still there")
	}
	install(t, o, host, "2")
	if diff := cmp.Diff(second, tree(t, root)); diff != "" {
		t.Errorf("a second installation changed something:\n%s", diff)
	}
	writeFile(t, filepath.Join(root, "var/lib/rik/data/db"), "data")
	writeFile(t, filepath.Join(root, "var/lib/riklet/pods.db"), "records")
	writeFile(t, filepath.Join(root, "var/lib/rik/images/rik-demo/index.json"), "image")
	r := Removal{Prefix: "/usr/local", Root: root, KeepData: true}
	if err := Uninstall(t.Context(), r, host); err != nil {
		t.Fatal(err)
	}
	kept := tree(t, root)
	for _, path := range []string{"/var/lib/rik/data/db", "/var/lib/riklet/pods.db", "/etc/rik/server.env"} {
		if _, found := kept[path]; !found {
			t.Errorf("--keep-data removed %s", path)
		}
	}
	if err := Uninstall(t.Context(), r, host); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("a second removal: %v, want %v", err, ErrNotInstalled)
	}
	install(t, o, host, "2")
	r.KeepData = false
	if err := Uninstall(t.Context(), r, host); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, tree(t, root)); diff != "" {
		t.Errorf("the removal left or removed something else:\n%s", diff)
	}
	if len(host.calls) > 0 {
		t.Errorf("another root than / changed this machine: %q", host.calls)
	}
}

func TestInstallRefusals(t *testing.T) {
	t.Parallel()
	packaged := t.TempDir()
	writeFile(t, filepath.Join(packaged, "usr/lib/rik/riklet"), "of the package")
	inTheWay := t.TempDir()
	writeFile(t, filepath.Join(inTheWay, "usr/local/bin/rikctl"), "another rikctl")
	for _, tc := range []struct {
		name string
		o    Options
		is   error
		says []string
	}{
		{"packages", Options{Root: packaged, Bundle: newBundle(t, "1")}, ErrPackaged, []string{"/usr/lib/rik/riklet", "upgrade the package"}},
		{"incomplete bundle", Options{Root: t.TempDir(), Bundle: newBundle(t, "1", "runc", "rik-dns")}, ErrBundle, []string{"runc", "rik-dns", "make build"}},
		{"another command", Options{Root: inTheWay, Bundle: newBundle(t, "1")}, nil, []string{"/usr/local/bin/rikctl", "remove"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.o.Package, tc.o.Prefix = layout.Server, "/usr/local"
			_, err := Install(t.Context(), tc.o, &machine{}, "1")
			if err == nil || tc.is != nil && !errors.Is(err, tc.is) {
				t.Fatalf("Install() = %v, want %v", err, tc.is)
			}
			for _, text := range tc.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("Install() = %q, which does not say %q", err, text)
				}
			}
		})
	}
}

// TestUninstallStopsFirst: programs and data are still there if something does not stop, so that
// the administrator can try again.
func TestUninstallStopsFirst(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	o := Options{Package: layout.Server, Prefix: "/opt/rik", Root: root, Bundle: newBundle(t, "1"), ControlPlaneOnly: true}
	host := &machine{}
	install(t, o, host, "1")
	writeFile(t, filepath.Join(root, "srv/rik/db"), "data")
	before := tree(t, root)
	r := Removal{Prefix: "/opt/rik", Root: root, Live: true, Directories: []string{"/srv/rik"}}
	refusal := errors.New("refused")
	nodeErr := refusal
	r.StopNode = func(context.Context, bool) error { return errors.Join(host.did("stop the node", ""), nodeErr) }
	host.stopErr = refusal
	for _, want := range []string{"nothing was removed", "run the command again"} {
		if err := Uninstall(t.Context(), r, host); !errors.Is(err, refusal) || !strings.Contains(err.Error(), want) {
			t.Errorf("Uninstall() = %v, want %q", err, want)
		}
		host.stopErr = nil
		if diff := cmp.Diff(before, tree(t, root)); diff != "" {
			t.Errorf("something was removed:\n%s", diff)
		}
	}
	nodeErr = nil
	if err := Uninstall(t.Context(), r, host); err != nil {
		t.Fatal(err)
	}
	want := []string{"create user rik", "stop rik.service", "stop rik.service", "stop the node ", "stop rik.service", "stop the node ", "remove user rik", "reload "}
	if diff := cmp.Diff(want, host.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	for path := range tree(t, root) {
		if strings.Contains(path, "rik") {
			t.Errorf("%s is left", path)
		}
	}
}

// TestNodeHasNoServer: a node does not get the programs of a server.
func TestNodeHasNoServer(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	install(t, Options{Package: layout.Node, Prefix: "/usr/local", Root: root, Bundle: newBundle(t, "1", "rik")}, &machine{}, "1")
	for path := range tree(t, root) {
		if strings.HasSuffix(path, "/rik.service") || strings.HasSuffix(path, "bin/rik") || strings.HasSuffix(path, "server.env") {
			t.Errorf("a node has %s", path)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, before, want string }{
		{"commented", "# text\n#A=1\nB=2\n", "# text\nA=\"x y\"\nB=2\n"},
		{"set", "A=1\n#A=2\n", "A=\"x y\"\n#A=2\n"},
		{"missing", "B=2\n", "B=2\nA=\"x y\"\n"},
		{"longer name", "AA=1\n", "AA=1\nA=\"x y\"\n"},
	} {
		if got, err := setAll(tc.before, []Setting{{"A", "x y"}}); err != nil || got != tc.want {
			t.Errorf("%s: setAll(%q) = %q, %v, want %q", tc.name, tc.before, got, err, tc.want)
		}
	}
	if got, err := setAll("", []Setting{{"A", "a\nB=1"}}); err == nil {
		t.Errorf("a value with two lines was written: %q", got)
	}
	root := t.TempDir()
	writeFile(t, filepath.Join(root, "etc/rik/agent.env"), "#RIKLET_FLAGS=--x\nRIKLET_FLAGS=\"--state-dir /a --node-label b=c\"\n")
	for _, value := range []string{"plain", "a b", `"$HOME\` + "`x`", `back\slash#`} {
		text, err := setAll("", []Setting{{"A", value}})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(root, "settings")
		writeFile(t, file, text)
		if got, err := ReadSettings([]string{file}); err != nil || got["A"] != value {
			t.Errorf("%q was written as %q and read as %q, %v", value, text, got["A"], err)
		}
	}
	// The file of earlier versions counts where the newer one sets nothing.
	writeFile(t, filepath.Join(root, "etc/default/rik"), "RIK_SERVER_FLAGS='--data-dir /b'\n")
	if got, err := FlagsOf(root, layout.Server); err != nil || !slices.Equal(got, []string{"--data-dir", "/b"}) {
		t.Errorf("FlagsOf() = %q, %v", got, err)
	}
	if got, err := FlagsOf(root, layout.Node); err != nil || !slices.Equal(got, []string{"--state-dir", "/a", "--node-label", "b=c"}) {
		t.Errorf("FlagsOf() = %q, %v", got, err)
	}
}
