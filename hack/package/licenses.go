package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/module"

	"rik.dev/rik/internal/install/layout"
)

// writeLicenses writes a package's copyright file, its change log, and the licenses of all modules
// that are linked into its programs.
func writeLicenses(bundle string, p layout.Package, date time.Time) error {
	modules, err := modulesOf(bundle, p)
	if err != nil {
		return err
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Errorf("finding the module cache: %w", err)
	}
	var all bytes.Buffer
	for _, m := range modules {
		texts, err := licensesOf(strings.TrimSpace(string(cache)), m)
		if err != nil {
			return err
		}
		fmt.Fprintf(&all, "==== %s %s\n\n%s\n", m.Path, m.Version, texts)
	}
	dir := filepath.Join(bundle, "doc", string(p))
	return errors.Join(
		writeCompressed(filepath.Join(dir, "third-party-licenses.gz"), all.Bytes()),
		write(filepath.Join(dir, "copyright"), copyright(p, date)),
		writeCompressed(filepath.Join(dir, "changelog.gz"), changelog(p, date)),
	)
}

// modulesOf returns the modules in the programs of a package, sorted, each version once.
func modulesOf(bundle string, p layout.Package) ([]module.Version, error) {
	files, err := layout.Files(p, layout.Under("/usr"), os.DirFS(bundle))
	if err != nil {
		return nil, err
	}
	var found []module.Version
	for _, f := range files {
		if f.Kind != layout.Program {
			continue
		}
		info, err := buildinfo.ReadFile(filepath.Join(bundle, f.Source))
		if err != nil {
			return nil, fmt.Errorf("reading the modules of %s: %w", f.Source, err)
		}
		found = append(found, module.Version{Path: "std", Version: info.GoVersion})
		if info.Main.Path != "rik.dev/rik" {
			found = append(found, module.Version{Path: info.Main.Path, Version: info.Main.Version})
		}
		for _, d := range info.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			found = append(found, module.Version{Path: d.Path, Version: d.Version})
		}
	}
	module.Sort(found)
	return slices.Compact(found), nil
}

// licenseFile matches the names under which modules keep licenses, notices and copyrights.
var licenseFile = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying|notice|copyright|patents)([-._].*)?$`)

// elsewhere names the licenses of modules that lie in a subfolder of their repository, with the
// license in the folder above, which is not part of the module.
var elsewhere = map[string]string{
	"github.com/rootless-containers/proto/go-proto": "Apache-2.0, see https://github.com/rootless-containers/proto/blob/master/LICENSE\n",
}

// licensesOf returns the texts of a module's licenses. A module without one may not be
// distributed, so that is an error.
func licensesOf(cache string, m module.Version) (string, error) {
	dir, err := sourceOf(cache, m)
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("reading the licenses of %s: %w; run \"go mod download\"", m, err)
	}
	var texts strings.Builder
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenseFile.MatchString(e.Name()) {
			continue
		}
		text, err := fs.ReadFile(os.DirFS(dir), e.Name())
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&texts, "-- %s\n%s\n", e.Name(), bytes.TrimSpace(text))
	}
	if text, found := elsewhere[m.Path]; found && texts.Len() == 0 {
		return text, nil
	}
	if texts.Len() == 0 {
		return "", fmt.Errorf("the module %s has no license in %s", m, dir)
	}
	return texts.String(), nil
}

// sourceOf returns the directory of a module in the cache.
func sourceOf(cache string, m module.Version) (string, error) {
	if m.Path == "std" {
		root, err := exec.Command("go", "env", "GOROOT").Output()
		return strings.TrimSpace(string(root)), err
	}
	path, err := module.EscapePath(m.Path)
	if err != nil {
		return "", err
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, path+"@"+version), nil
}
