// Package layout describes the files of an installation of rik. It says which file belongs to which
// package, and where it is on the machine. It has the texts of the systemd units and of the
// configuration files. The packages (.deb, .rpm), the archive, "rik install" and "make install" all use this
// description, so an installation looks the same whichever way it was made.
//
// A bundle is a directory with everything that an installation needs. The archive has the same form.
// The programs and the directory guest are at its top. Man pages are below man, completions below
// completions, and licenses below doc. The folder bin of a checkout is a bundle without man pages,
// completions and licenses.
//
// The package decides nothing about the machine and changes nothing on it.
package layout

import (
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Package is the name of a .deb or .rpm package.
type Package string

// The packages. Server depends on the two others.
const (
	Server Package = "rik"    // the control plane; it also runs the node of its machine
	Node   Package = "riklet" // the agent of a node, and what instances need
	Client Package = "rikctl" // the command line
)

// RecordName is the file in Paths.Programs with what "rik install" wrote.
const RecordName = "install.json"

// Packages returns all packages, in the order of their dependencies.
func Packages() []Package { return []Package{Client, Node, Server} }

// Requires returns the packages that p depends on, p itself last.
func (p Package) Requires() []Package {
	if p == Server {
		return Packages()
	}
	return []Package{p}
}

// The directories of data. They are the defaults of the programs' flags.
const (
	DataDir    = "/var/lib/rik"        // the cluster's data, certificates and keys
	StateDir   = "/var/lib/riklet"     // the node's images and records
	RunDir     = "/run/riklet"         // the node's sockets; a tmpfs
	NetworkDir = "/run/rik-network"    // the locks of the node's network
	ImageDir   = "/var/lib/rik/images" // image archives, images of users, and DemoImage
	ConfigDir  = "/etc/rik"            // configuration
)

// DemoImage is the directory in ImageDir with the image of "rik demo".
const DemoImage = "rik-demo"

// Paths are the directories of programs and of their documentation.
type Paths struct {
	// Programs has all programs: each finds the others in its own directory.
	Programs string
	// Commands has links to the programs that users run.
	Commands string
	// Units has the systemd units.
	Units string
	// Share has man pages, completions and documentation.
	Share string
}

// Under returns the paths below a prefix. With "/usr" they are the paths of the packages. systemd
// reads the units of no other prefix than "/usr" and "/usr/local" (systemd.unit(5)), so with another
// one they are in /etc.
func Under(prefix string) Paths {
	units := "/etc/systemd/system"
	if prefix == "/usr" || prefix == "/usr/local" {
		units = path.Join(prefix, "lib/systemd/system")
	}
	return Paths{
		Programs: path.Join(prefix, "lib/rik"),
		Commands: path.Join(prefix, "bin"),
		Units:    units,
		Share:    path.Join(prefix, "share"),
	}
}

// Kind says how a file is installed.
type Kind string

// The kinds of files.
const (
	Program Kind = "program" // copied from the bundle
	Data    Kind = "data"    // copied from the bundle
	Link    Kind = "link"    // a symbolic link
	Text    Kind = "text"    // written from Content
	// Config is written from Content if there is no such file. An upgrade keeps the
	// administrator's version.
	Config Kind = "config"
)

// File is one file of an installation.
type File struct {
	Package Package
	Kind    Kind
	// Path is absolute.
	Path string
	Mode fs.FileMode
	// Source is a path in the bundle, for Program and Data.
	Source string
	// Target is the target of a Link, relative to its directory.
	Target string
	// Content is the text of Text and Config.
	Content string
	// Optional files may be missing in the bundle.
	Optional bool
}

// nodePrograms are the programs of a node. runc is part of rik, because the versions of runc in
// distributions have known container escapes. hello is the program in the sample of "rik demo".
var nodePrograms = []string{"riklet", "rik-shim", "rik-unpack", "rik-dns", "runc", "hello"}

// Files returns the files of a package, sorted by path. The lists of man pages, completions and
// licenses come from the bundle.
func Files(p Package, at Paths, bundle fs.FS) ([]File, error) {
	files := programs(p, at)
	switch p {
	case Server:
		files = append(files, Unit(Server, at, UnitOptions{}), ConfigOf(Server))
	case Node:
		files = append(files, Unit(Node, at, UnitOptions{}), ConfigOf(Node))
		for _, name := range []string{"kernel", "initramfs"} {
			// Nodes without microVMs need neither.
			files = append(files, File{Package: p, Kind: Data, Path: path.Join(at.Programs, "guest", name), Mode: 0o644, Source: "guest/" + name, Optional: true})
		}
	}
	shared, err := documentation(p, at, bundle)
	if err != nil {
		return nil, err
	}
	files = append(files, shared...)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

// programs returns the programs of a package, and the link to its command.
func programs(p Package, at Paths) []File {
	names := []string{string(p)}
	if p == Node {
		names = nodePrograms
	}
	var files []File
	for _, name := range names {
		files = append(files, File{Package: p, Kind: Program, Path: path.Join(at.Programs, name), Mode: 0o755, Source: name})
	}
	return append(files, File{Package: p, Kind: Link, Path: path.Join(at.Commands, string(p)), Target: "../lib/rik/" + string(p)})
}

// documentation returns what the bundle has for a package: man pages, completions, licenses.
func documentation(p Package, at Paths, bundle fs.FS) ([]File, error) {
	var files []File
	for from, to := range map[string]string{
		"man/" + string(p):         path.Join(at.Share, "man"),
		"completions/" + string(p): at.Share,
		"doc/" + string(p):         path.Join(at.Share, "doc", string(p)),
	} {
		err := fs.WalkDir(bundle, from, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return ignoreMissing(err)
			}
			rest := strings.TrimPrefix(name, from+"/")
			files = append(files, File{Package: p, Kind: Data, Path: path.Join(to, rest), Mode: 0o644, Source: name})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}
