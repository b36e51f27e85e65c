package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"rik.dev/rik/internal/ociimage"
)

var (
	// triplets are the names of the directories of Debian's libraries.
	triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
	machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
)

// iptables are the programs of iptables that a node runs. Both variants are there, because a
// container engine uses one of them for its own rules in the network namespace of a container.
var iptables = map[string][]string{
	"xtables-nft-multi":    {"iptables", "iptables-save", "iptables-restore", "iptables-nft", "iptables-nft-save", "iptables-nft-restore"},
	"xtables-legacy-multi": {"iptables-legacy", "iptables-legacy-save", "iptables-legacy-restore"},
}

// The files of a root that describe its packages.
const (
	// packagesFile has a line for each package: name, version, architecture, SHA-256.
	packagesFile = "packages"
	// ownersFile has a line for each file: package, path.
	ownersFile = "owners"
)

// collection is the set of files that an image gets from Debian packages.
type collection struct {
	platform
	files map[string]ociimage.File
	// owners are the packages of the root's files. used are those from which the image has a file.
	owners map[string]string
	used   map[string]bool
}

// packages returns the files of an image that come from Debian: certificate authorities, on a node
// the programs of iptables, and the libraries of these and of our own programs. Programs that are
// linked statically need none.
func (p platform) packages(programs []string, node bool) (map[string]ociimage.File, error) {
	owners, err := p.owners()
	if err != nil {
		return nil, err
	}
	c := collection{platform: p, files: map[string]ociimage.File{}, owners: owners, used: map[string]bool{}}
	if err := c.authorities(); err != nil {
		return nil, err
	}
	for _, name := range programs {
		if err := c.libraries(filepath.Join(p.programs, name)); err != nil {
			return nil, err
		}
	}
	if node {
		if err := c.iptables(); err != nil {
			return nil, err
		}
	}
	return c.files, c.record()
}

// authorities joins the certificates of the package ca-certificates, as its installation does.
func (c collection) authorities() error {
	found, err := filepath.Glob(filepath.Join(c.root, "usr/share/ca-certificates/mozilla/*.crt"))
	if err != nil || len(found) == 0 {
		return errors.Join(fmt.Errorf("%s has no certificate authorities: the package ca-certificates is missing", c.root), err)
	}
	var all []byte
	for _, file := range found { // sorted by Glob
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		all = append(all, text...)
		if !strings.HasSuffix(string(text), "\n") {
			all = append(all, '\n')
		}
	}
	c.files["etc/ssl/certs/ca-certificates.crt"] = ociimage.File{Content: all}
	return c.use(found[0])
}

func (c collection) iptables() error {
	for program, names := range iptables {
		if err := c.file("usr/sbin/" + program); err != nil {
			return err
		}
		for _, name := range names {
			c.files["usr/sbin/"+name] = ociimage.File{Link: program}
		}
	}
	dir := path.Join("usr/lib", triplets[c.arch], "xtables")
	for _, kind := range []string{"libxt_", "libipt_"} {
		found, err := filepath.Glob(filepath.Join(c.root, dir, kind+"*.so"))
		if err != nil || len(found) == 0 {
			return errors.Join(fmt.Errorf("%s has no extensions of iptables", filepath.Join(c.root, dir)), err)
		}
		for _, file := range found {
			if err := c.file(path.Join(dir, filepath.Base(file))); err != nil {
				return err
			}
		}
	}
	return nil
}

// file adds a file of the root and the libraries that it needs.
func (c collection) file(name string) error {
	if _, ok := c.files[name]; ok {
		return nil
	}
	source := filepath.Join(c.root, name)
	info, err := os.Lstat(source)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 { // an extension with two names
		target, err := os.Readlink(source)
		if err != nil {
			return err
		}
		c.files[name] = ociimage.File{Link: target}
		return c.file(path.Join(path.Dir(name), target))
	}
	c.files[name] = ociimage.File{Source: source, Mode: info.Mode().Perm()}
	if err := c.use(source); err != nil {
		return err
	}
	return c.libraries(source)
}

// libraries adds the libraries and the interpreter of a program or library.
func (c collection) libraries(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	defer f.Close()
	if want := machines[c.arch]; f.Machine != want {
		return fmt.Errorf("%s is a program for %s, want %s", file, f.Machine, want)
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("reading the libraries of %s: %w", file, err)
	}
	if interpreter := interpreterOf(f); interpreter != "" {
		if err := c.library(path.Base(interpreter), interpreter); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	for _, name := range needed {
		if strings.HasPrefix(name, "ld-linux-") {
			continue // the interpreter
		}
		if err := c.library(name, path.Join("usr/lib", triplets[c.arch], name)); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

func interpreterOf(f *elf.File) string {
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text := make([]byte, p.Filesz)
			if _, err := p.ReadAt(text, 0); err == nil {
				return strings.Trim(string(text), "\x00/")
			}
		}
	}
	return ""
}

// library adds a library of the root under a name, with what it needs.
func (c collection) library(soname, name string) error {
	if _, ok := c.files[name]; ok {
		return nil
	}
	for _, dir := range []string{"usr/lib", "lib"} {
		source, err := filepath.EvalSymlinks(filepath.Join(c.root, dir, triplets[c.arch], soname))
		if err != nil {
			continue
		}
		c.files[name] = ociimage.File{Source: source}
		if err := c.use(source); err != nil {
			return err
		}
		return c.libraries(source)
	}
	return fmt.Errorf("%s has no library %s", c.root, soname)
}

// owners reads the packages of the root's files.
func (p platform) owners() (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(p.root, ownersFile))
	if err != nil {
		return nil, fmt.Errorf("%s is no directory of hack/images.sh: %w", p.root, err)
	}
	owners := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		owners[path.Clean("/"+file)] = name
	}
	return owners, nil
}

// use records the package of a file of the root.
func (c collection) use(source string) error {
	name, err := filepath.Rel(c.root, source)
	if err != nil {
		return err
	}
	owner := c.owners[path.Clean("/"+name)]
	if owner == "" {
		return fmt.Errorf("no package has the file %s", source)
	}
	c.used[owner] = true
	return nil
}

// record adds the list of the packages that the image has files of, and the copyright file of each.
func (c collection) record() error {
	list, err := os.ReadFile(filepath.Join(c.root, packagesFile))
	if err != nil {
		return err
	}
	var lines []string
	for line := range strings.Lines(string(list)) {
		name, _, _ := strings.Cut(line, " ")
		if !c.used[name] {
			continue
		}
		lines = append(lines, line)
		file := path.Join("usr/share/doc", name, "copyright")
		source, err := filepath.EvalSymlinks(filepath.Join(c.root, file))
		if err != nil {
			return fmt.Errorf("the package %s has no copyright file: %w", name, err)
		}
		c.files[file] = ociimage.File{Source: source, Mode: 0o644}
	}
	slices.Sort(lines)
	c.files["usr/share/doc/rik/packages"] = ociimage.File{Content: []byte(strings.Join(lines, ""))}
	return nil
}
