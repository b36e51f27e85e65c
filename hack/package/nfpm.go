package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/install/layout"
)

//go:embed scripts
var scripts embed.FS

// A settings is the file nfpm.yaml of one package. See https://nfpm.goreleaser.com/docs/configuration.
type settings struct {
	Name          string              `json:"name"`
	Arch          string              `json:"arch"`
	Platform      string              `json:"platform"`
	Version       string              `json:"version"`
	VersionSchema string              `json:"version_schema"`
	Section       string              `json:"section"`
	Priority      string              `json:"priority"`
	Maintainer    string              `json:"maintainer"`
	Homepage      string              `json:"homepage"`
	License       string              `json:"license"`
	Description   string              `json:"description"`
	MTime         time.Time           `json:"mtime"`
	Contents      []content           `json:"contents"`
	Overrides     map[string]override `json:"overrides"`
	Deb           map[string]any      `json:"deb,omitempty"`
	RPM           map[string]any      `json:"rpm,omitempty"`
}

type content struct {
	Source string `json:"src,omitempty"`
	Path   string `json:"dst"`
	Type   string `json:"type,omitempty"`
	// Packager limits an entry to one format.
	Packager string   `json:"packager,omitempty"`
	Info     fileInfo `json:"file_info"`
}

type fileInfo struct {
	Mode  fs.FileMode `json:"mode,omitempty"`
	MTime time.Time   `json:"mtime"`
	Owner string      `json:"owner"`
	Group string      `json:"group"`
}

type override struct {
	Depends    []string          `json:"depends,omitempty"`
	Recommends []string          `json:"recommends,omitempty"`
	Suggests   []string          `json:"suggests,omitempty"`
	Scripts    map[string]string `json:"scripts,omitempty"`
}

// descriptions have the synopsis in the first line, as Debian's policy says.
var descriptions = map[layout.Package]string{
	layout.Server: "workload orchestrator: server\n" +
		"rik turns machines into a cluster that runs containers, microVMs and\n" +
		"processes. This package has the server: the API, the controller, the\n" +
		"scheduler and the datastore. It also runs instances on its own machine.",
	layout.Node: "workload orchestrator: node\n" +
		"rik turns machines into a cluster that runs containers, microVMs and\n" +
		"processes. This package has the agent of a node, and what it needs to\n" +
		"run instances: runc and the kernel of microVMs.",
	layout.Client: "workload orchestrator: command line\n" +
		"rik turns machines into a cluster that runs containers, microVMs and\n" +
		"processes. This package has rikctl, the command line of a cluster.",
}

// The programs of other packages that a node runs: iptables for its rules, kmod for its modules,
// e2fsprogs and QEMU for microVMs.
var (
	debNeeds = map[layout.Package]override{
		layout.Node:   {Depends: []string{"iptables", "init-system-helpers (>= 1.54~)"}, Recommends: []string{"ca-certificates", "kmod"}, Suggests: []string{"e2fsprogs"}},
		layout.Server: {Depends: []string{"init-system-helpers (>= 1.54~)"}, Suggests: []string{"bash-completion"}},
		layout.Client: {Suggests: []string{"bash-completion"}},
	}
	rpmNeeds = map[layout.Package]override{
		layout.Node: {Depends: []string{"iptables"}, Recommends: []string{"ca-certificates", "kmod"}, Suggests: []string{"e2fsprogs", "qemu-kvm"}},
	}
	// debEmulators are the packages of the QEMU that runs guests of an architecture.
	debEmulators = map[string]string{"amd64": "qemu-system-x86", "arm64": "qemu-system-arm"}
)

// writeSettings writes OUT/PACKAGE.yaml for nfpm, with the files and scripts that it names.
func writeSettings(bundle, version, arch, out string) error {
	date, err := buildTime()
	if err != nil {
		return err
	}
	for _, p := range layout.Packages() {
		s, err := settingsOf(p, bundle, version, arch, filepath.Join(out, string(p)), date)
		if err != nil {
			return fmt.Errorf("package %s: %w", p, err)
		}
		text, err := yaml.Marshal(s)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(out, string(p)+".yaml"), text); err != nil {
			return err
		}
	}
	return nil
}

func settingsOf(p layout.Package, bundle, version, arch, scratch string, date time.Time) (settings, error) {
	s := settings{
		Name: string(p), Arch: arch, Platform: "linux", Version: version, VersionSchema: "none", Section: "admin", Priority: "optional",
		Maintainer: maintainer, Homepage: "https://rik.dev/rik", License: "Apache-2.0", Description: descriptions[p], MTime: date,
		RPM: map[string]any{"group": "System Environment/Base", "buildhost": "rik", "compression": "zstd"},
		Deb: map[string]any{"compression": "xz"},
	}
	if key := os.Getenv("RIK_SIGNING_KEY"); key != "" {
		// nfpm reads the passphrase from NFPM_PASSPHRASE.
		s.Deb["signature"] = map[string]any{"key_file": key, "method": "debsign"}
		s.RPM["signature"] = map[string]any{"key_file": key}
	}
	deb, rpm := debNeeds[p], rpmNeeds[p]
	if p == layout.Node {
		deb.Suggests = append(slices.Clip(deb.Suggests), debEmulators[arch])
	}
	for _, other := range p.Requires() {
		if other != p {
			deb.Depends = append(deb.Depends[:len(deb.Depends):len(deb.Depends)], fmt.Sprintf("%s (= %s)", other, version))
			rpm.Depends = append(rpm.Depends[:len(rpm.Depends):len(rpm.Depends)], fmt.Sprintf("%s = %s", other, version))
		}
	}
	for kind, o := range map[string]*override{"deb": &deb, "rpm": &rpm} {
		var err error
		if o.Scripts, err = scriptsOf(p, kind, filepath.Join(scratch, kind)); err != nil {
			return s, err
		}
	}
	s.Overrides = map[string]override{"deb": deb, "rpm": rpm}
	files, err := layout.Files(p, layout.Under("/usr"), os.DirFS(bundle))
	if err != nil {
		return s, err
	}
	for _, dir := range directoriesOf(files) {
		s.Contents = append(s.Contents, content{Path: dir, Type: "dir", Packager: "rpm", Info: fileInfo{Mode: 0o755, MTime: date, Owner: "root", Group: "root"}})
	}
	for _, f := range append(files, overridesOf(p)...) {
		c, err := contentOf(f, bundle, filepath.Join(scratch, "files"), date)
		if err != nil {
			return s, err
		}
		if c != nil {
			s.Contents = append(s.Contents, *c)
		}
	}
	return s, nil
}

// directoriesOf returns the directories that a removal must remove. dpkg removes each directory that
// is empty; rpm removes only those that a package lists. Packages may list the same directory.
func directoriesOf(files []layout.File) []string {
	ours := regexp.MustCompile(`^/(usr/lib/rik|etc/rik|usr/share/doc/rik|usr/share/fish)`)
	found := map[string]bool{}
	for _, f := range files {
		for dir := path.Dir(f.Path); ours.MatchString(dir); dir = path.Dir(dir) {
			found[dir] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// overridesOf returns the file with what lintian has to accept. All programs are static, so one
// package works on every distribution. A configuration file can have a join token.
func overridesOf(p layout.Package) []layout.File {
	return []layout.File{{
		Package: p, Kind: layout.Text, Path: path.Join("/usr/share/lintian/overrides", string(p)), Mode: 0o644,
		Content: string(p) + ": statically-linked-binary\n" + string(p) + ": non-standard-file-perm 0600 != 0644 *\n",
	}}
}

// contentOf returns the entry of a file, or nil for an optional file that the bundle lacks.
func contentOf(f layout.File, bundle, scratch string, date time.Time) (*content, error) {
	c := &content{Path: f.Path, Info: fileInfo{Mode: f.Mode, MTime: date, Owner: "root", Group: "root"}}
	switch f.Kind {
	case layout.Link:
		c.Type, c.Source, c.Info.Mode = "symlink", f.Target, 0
		return c, nil
	case layout.Config:
		c.Type = "config|noreplace"
	}
	if f.Source != "" {
		c.Source = filepath.Join(bundle, f.Source)
		if _, err := os.Stat(c.Source); errors.Is(err, fs.ErrNotExist) && f.Optional {
			return nil, nil //nolint:nilnil // see the comment of the function
		}
		return c, nil
	}
	c.Source = filepath.Join(scratch, f.Path)
	return c, write(c.Source, []byte(f.Content))
}

// scriptsOf writes the scripts of a package for one format, and returns their paths under the
// names of nfpm.
func scriptsOf(p layout.Package, format, dir string) (map[string]string, error) {
	found := map[string]string{}
	for _, name := range []string{"postinstall", "preremove", "postremove"} {
		text, err := scripts.ReadFile(path.Join("scripts", format, string(p)+"."+name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[name] = filepath.Join(dir, name)
		if err := write(found[name], text); err != nil {
			return nil, err
		}
	}
	return found, nil
}
