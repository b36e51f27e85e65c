// Package install puts rik on a machine without packages, and removes it. internal/install/layout
// says which files belong where; this package copies and writes them, and starts the services.
//
// Install is idempotent: a second run with a newer bundle is an upgrade. Instances keep running
// through upgrades. Only root may call Install and Uninstall with the root directory "/".
package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/install/layout"
)

// Errors of Install and Uninstall.
var (
	// ErrPackaged means that a .deb or .rpm package owns the files.
	ErrPackaged = errors.New("rik is installed from a package")
	// ErrNotInstalled means that "rik install" wrote nothing below this prefix.
	ErrNotInstalled = errors.New("rik is not installed here")
	// ErrBundle means that the bundle lacks a program.
	ErrBundle = errors.New("the bundle is not complete")
	// ErrNotReady means that the service runs, and did not come as far as Options.Joined in time.
	ErrNotReady = errors.New("the service is not ready yet")
)

// Options say what is installed and where.
type Options struct {
	// Package is layout.Server or layout.Node. A server also gets the files of a node.
	Package layout.Package
	// Prefix is the parent of lib/rik, bin and share, such as /usr/local.
	Prefix string
	// Root is the directory that becomes the root of a machine; "/" for this machine.
	Root string
	// Bundle is the directory with the programs.
	Bundle string
	// ControlPlaneOnly makes a server that runs no instances.
	ControlPlaneOnly bool
	// Settings are the variables for the configuration file of the service. If empty, an existing
	// file stays as it is.
	Settings []Setting
	// Start enables and starts the service, or restarts it. It needs Root "/".
	Start bool
	// Joined is the beginning of the service's status for which Install waits after the start. If
	// it is empty, Install waits only until the service has started.
	Joined string
	// Timeout bounds that wait. 0 means no timeout.
	Timeout time.Duration
	// Progress is called before each step with a short text, such as "starting rik.service".
	Progress func(string)
}

// Setting is one line of a configuration file.
type Setting struct{ Name, Value string }

// Record is the content of layout.RecordName: what an installation consists of.
type Record struct {
	Package layout.Package `json:"package"`
	Prefix  string         `json:"prefix"`
	Version string         `json:"version"`
	// Files are the paths of programs, links, units and documentation, without Root.
	// Configuration files are not among them.
	Files []string `json:"files"`
	// Directories are those that did not exist before, without Root.
	Directories []string `json:"directories"`
	// User is the user that the installation created, or empty.
	User string `json:"user,omitempty"`
}

// on returns a path of the machine below Root.
func (o *Options) on(name string) string { return filepath.Join(o.Root, name) }

func (o *Options) say(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// packages returns the packages whose files are installed. Every machine gets the command line.
func (o *Options) packages() []layout.Package {
	if o.Package == layout.Server {
		return layout.Packages()
	}
	return []layout.Package{layout.Client, layout.Node}
}

// files returns all files of the installation.
func (o *Options) files() ([]layout.File, error) {
	var all []layout.File
	for _, p := range o.packages() {
		files, err := layout.Files(p, layout.Under(o.Prefix), os.DirFS(o.Bundle))
		if err != nil {
			return nil, fmt.Errorf("reading the bundle %s: %w", o.Bundle, err)
		}
		all = append(all, files...)
	}
	if o.Package == layout.Server {
		// A server runs the node of its machine itself. The unit of a node would only confuse.
		all = slices.DeleteFunc(all, func(f layout.File) bool {
			return f.Package == layout.Node && (f.Kind == layout.Config || f.Kind == layout.Text)
		})
	}
	for i := range all {
		if all[i].Package == layout.Server && all[i].Kind == layout.Text && o.ControlPlaneOnly {
			all[i] = layout.Unit(layout.Server, layout.Under(o.Prefix), layout.UnitOptions{ControlPlaneOnly: true})
		}
	}
	return all, nil
}

// Install copies the files, writes the configuration and starts the service. It returns the record
// that it wrote. If a file cannot be written, the installed version stays usable: each file is
// replaced atomically, and the service restarts last.
func Install(ctx context.Context, o Options, host Host, version string) (Record, error) {
	record := Record{Package: o.Package, Prefix: o.Prefix, Version: version}
	if err := o.check(host); err != nil {
		return record, err
	}
	files, err := o.files()
	if err != nil {
		return record, err
	}
	if err := o.complete(files); err != nil {
		return record, err
	}
	before, err := ReadRecord(o.Root, o.Prefix)
	if err != nil && !errors.Is(err, ErrNotInstalled) {
		return record, err
	}
	record.User, record.Directories = before.User, before.Directories
	if err := o.write(files, &record); err != nil {
		return record, err
	}
	if o.ControlPlaneOnly {
		o.say("creating the user %s", layout.User)
		created, err := host.EnsureUser(ctx, layout.User, layout.DataDir)
		if err != nil {
			return record, err
		}
		if created {
			record.User = layout.User
		}
	}
	if err := o.configure(); err != nil {
		return record, err
	}
	if err := o.save(record); err != nil {
		return record, err
	}
	obsolete := slices.DeleteFunc(before.Files, func(old string) bool { return slices.Contains(record.Files, old) })
	for _, old := range obsolete {
		if err := removeFile(o.on(old)); err != nil {
			return record, fmt.Errorf("removing a file of the version before: %w", err)
		}
	}
	o.removeEmpty(slices.Clone(record.Directories))
	if !o.Start {
		return record, nil
	}
	unit := layout.UnitName(o.Package)
	o.say("starting %s", unit)
	state, err := host.State(ctx, unit)
	if err != nil {
		return record, err
	}
	if err := host.Start(ctx, unit); err != nil {
		return record, err
	}
	return record, o.await(ctx, host, unit, state.Invocation)
}

// check refuses what cannot work before anything is written.
func (o *Options) check(host Host) error {
	if !slices.Contains([]layout.Package{layout.Server, layout.Node}, o.Package) {
		return fmt.Errorf("programmer error: a %q cannot be installed", o.Package)
	}
	if !path.IsAbs(o.Prefix) {
		return fmt.Errorf("the prefix %q is not an absolute path", o.Prefix)
	}
	packaged := layout.Under("/usr")
	if o.Prefix != "/usr" {
		for _, p := range layout.Packages() {
			if _, err := os.Lstat(o.on(path.Join(packaged.Programs, string(p)))); err == nil {
				return fmt.Errorf("%w: %s exists; upgrade the package, or remove it first", ErrPackaged, path.Join(packaged.Programs, string(p)))
			}
		}
	}
	if !o.Start {
		return nil
	}
	return host.Usable()
}

// complete returns an error that names all programs that the bundle lacks.
func (o *Options) complete(files []layout.File) error {
	var missing []string
	for _, f := range files {
		if f.Source == "" || f.Optional {
			continue
		}
		if _, err := os.Stat(filepath.Join(o.Bundle, f.Source)); err != nil {
			missing = append(missing, f.Source)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s lacks %s; run the rik of an unpacked archive, or \"make build\" first", ErrBundle, o.Bundle, strings.Join(missing, ", "))
	}
	return nil
}

// write writes all files but the configuration, and records them.
func (o *Options) write(files []layout.File, r *Record) error {
	o.say("copying %d files to %s", len(files), o.on(o.Prefix))
	for _, f := range files {
		if f.Kind == layout.Config {
			continue
		}
		if err := o.writeFile(f, r); err != nil {
			return fmt.Errorf("writing %s: %w", o.on(f.Path), err)
		}
	}
	return nil
}

// writeFile writes one file and records it. An optional file that the bundle lacks is left out.
func (o *Options) writeFile(f layout.File, r *Record) error {
	from := io.NopCloser(strings.NewReader(f.Content))
	if f.Source != "" {
		file, err := os.Open(filepath.Join(o.Bundle, f.Source))
		if errors.Is(err, fs.ErrNotExist) && f.Optional {
			return nil
		}
		if err != nil {
			return err
		}
		from = file
	}
	if err := o.makeDirectories(path.Dir(f.Path), r); err != nil {
		return errors.Join(err, from.Close())
	}
	r.Files = append(r.Files, f.Path)
	if f.Kind == layout.Link {
		return replaceLink(f.Target, o.on(f.Path))
	}
	return errors.Join(atomicfile.Copy(o.on(f.Path), from, f.Mode), from.Close())
}

// makeDirectories creates a directory and its missing parents, and records those that it created.
// All users may enter them.
func (o *Options) makeDirectories(dir string, r *Record) error {
	err := os.Mkdir(o.on(dir), 0o755)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrNotExist) && dir != "/":
		if err := o.makeDirectories(path.Dir(dir), r); err != nil {
			return err
		}
		return o.makeDirectories(dir, r)
	case err == nil && !slices.Contains(r.Directories, dir):
		r.Directories = append(r.Directories, dir)
	}
	return err
}

// replaceLink makes a symbolic link, also over an existing one. Another kind of file stays.
func replaceLink(target, at string) error {
	if old, err := os.Readlink(at); err == nil && old == target {
		return nil
	}
	if info, err := os.Lstat(at); err == nil && info.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("a file that rik did not install is in the way; remove %s first", at)
	}
	temporary := at + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, at)
}

// configure writes the configuration file of the service, unless one exists and no settings are
// given.
func (o *Options) configure() error {
	config := layout.ConfigOf(o.Package)
	to := o.on(config.Path)
	text, err := os.ReadFile(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		text = []byte(config.Content)
	case err != nil:
		return fmt.Errorf("reading the configuration: %w", err)
	case len(o.Settings) == 0:
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("creating the directory of the configuration: %w", err)
	}
	changed, err := setAll(string(text), o.Settings)
	if err != nil {
		return err
	}
	if err := atomicfile.Copy(to, strings.NewReader(changed), config.Mode); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	return nil
}

func (o *Options) save(r Record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("programmer error: encoding the record: %w", err)
	}
	return atomicfile.Copy(o.on(recordPath(o.Prefix)), bytes.NewReader(append(text, '\n')), 0o644)
}

func recordPath(prefix string) string {
	return path.Join(layout.Under(prefix).Programs, layout.RecordName)
}

// ReadRecord returns what "rik install" wrote below a prefix. The error is ErrNotInstalled if it
// wrote nothing.
func ReadRecord(root, prefix string) (Record, error) {
	name := filepath.Join(root, recordPath(prefix))
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, fmt.Errorf("%w: %s does not exist", ErrNotInstalled, name)
	}
	if err != nil {
		return Record{}, fmt.Errorf("reading what is installed: %w", err)
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return Record{}, fmt.Errorf("reading %s: %w; install again to write it new", name, err)
	}
	return r, nil
}
