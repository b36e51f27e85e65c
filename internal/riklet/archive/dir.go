package archive

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/riklet/dircache"
	"rik.dev/rik/internal/riklet/fetch"
	"rik.dev/rik/internal/riklet/flight"
	"rik.dev/rik/internal/riklet/image"
)

// ErrInvalidConfig is returned by New.
var ErrInvalidConfig = errors.New("invalid configuration of the repositories")

// ErrNoSpace is returned if the file system of the store is full, except for the reserved space.
// Incomplete files are removed.
var ErrNoSpace = errors.New("no space left for repositories")

// The default limits of one repository. They suffice for a program and its files.
var defaults = fetch.Limits{
	Bytes: 4 << 30, Entries: 200_000, DownloadBytes: 2 << 30, Time: image.DefaultTime, Stall: image.DefaultStall,
}

// Config configures a Dir.
type Config struct {
	// Root is an absolute directory for the trees. New creates it if it is missing.
	Root string
	// Unpacker is the command line of rik-unpack.
	Unpacker []string
	// Limits are the limits of one repository. A zero value means the default.
	Limits fetch.Limits
	// AllowHTTP, AllowNetworks, AllowProxy and RootCAs are passed to fetch.Config.
	AllowHTTP     bool
	AllowNetworks []netip.Prefix
	AllowProxy    bool
	RootCAs       *x509.CertPool
	// Private are rik's own directories. A local repository must not be in one of them.
	Private []string
	// Logger logs what is unpacked and removed. nil discards the messages.
	Logger *slog.Logger
}

// Validate reports every problem.
func (c *Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Root) || filepath.Clean(c.Root) == "/" {
		errs = append(errs, fmt.Errorf("root %q is not an absolute path below /", c.Root))
	}
	if len(c.Unpacker) == 0 {
		errs = append(errs, errors.New("unpacker is empty"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	return nil
}

// Dir is a Store in a directory of the node.
type Dir struct {
	cfg     Config
	log     *slog.Logger
	cache   *dircache.Cache
	fetcher *fetch.Fetcher
	flights *flight.Group[string, string] // downloads: keys by URL or path
}

var _ Store = (*Dir)(nil)

// New opens the store at cfg.Root and removes incomplete files. Close releases the directory. Users
// other than root need permission to enter the directories above the root, so that they can read
// the unpacked files.
func New(cfg Config) (*Dir, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Limits = cfg.Limits.Or(defaults)
	s, err := dircache.Open(cfg.Root, cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("opening the repositories at %s: %w", cfg.Root, err)
	}
	if cfg.Limits.ReserveBytes <= 0 {
		var st syscall.Statfs_t
		if err := syscall.Statfs(cfg.Root, &st); err != nil {
			return nil, errors.Join(fmt.Errorf("reading the free space of %s: %w", cfg.Root, err), s.Close())
		}
		cfg.Limits.ReserveBytes = min(int64(st.Blocks)*st.Bsize/50, 512<<20)
	}
	return &Dir{
		cfg: cfg, log: cfg.Logger, cache: s, flights: flight.New[string, string](dircache.ErrClosed),
		fetcher: fetch.New(fetch.Config{
			AllowHTTP: cfg.AllowHTTP, AllowNetworks: cfg.AllowNetworks, AllowProxy: cfg.AllowProxy, RootCAs: cfg.RootCAs,
			Bytes: cfg.Limits.DownloadBytes, Time: cfg.Limits.Time, Stall: cfg.Limits.Stall, ReserveBytes: cfg.Limits.ReserveBytes,
		}),
	}, nil
}

// Close cancels downloads. Pins stay.
func (d *Dir) Close() error {
	d.flights.Close()
	return d.cache.Close()
}

// Release implements Store.
func (d *Dir) Release(user string) error { return d.cache.Release(user) }

// Users implements Store.
func (d *Dir) Users() ([]string, error) { return d.cache.Users() }

// Collect implements Store.
func (d *Dir) Collect(ctx context.Context, olderThan time.Duration) error {
	return d.cache.Collect(ctx, olderThan)
}

// placeholder stands for the version in a repository's URL.
const placeholder = "{version}"

// version matches one path component of a URL that needs no escaping.
var version = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)

// resolve replaces the placeholder in the repository's URL or path by the version.
func resolve(r Request) (string, error) {
	if r.Version != "" && (!version.MatchString(r.Version) || strings.Contains(r.Version, "..")) {
		return "", fmt.Errorf("%w: the version %q must begin with a letter or digit and have only those, '.', '_', '+' and '-', and no \"..\"", ErrRefused, shorten(r.Version))
	}
	if !strings.Contains(r.Repo, placeholder) {
		return r.Repo, nil
	}
	if r.Version == "" {
		return "", fmt.Errorf("%w: the repository contains %s, and the App has no version", ErrRefused, placeholder)
	}
	// A version in the place of a host would choose the server that the node connects to.
	if scheme, rest, ok := strings.Cut(r.Repo, "://"); ok {
		host, _, _ := strings.Cut(rest, "/")
		if strings.Contains(scheme+host, placeholder) {
			return "", fmt.Errorf("%w: %s is allowed only in the path of the repository's URL", ErrRefused, placeholder)
		}
	}
	with := r.Version
	if !strings.HasPrefix(r.Repo, "/") {
		with = strings.ReplaceAll(url.PathEscape(r.Version), "+", "%2B") // means a space in queries
	}
	return strings.ReplaceAll(r.Repo, placeholder, with), nil
}

// Get implements Store.
func (d *Dir) Get(ctx context.Context, user string, r Request) (*Tree, error) {
	where, err := resolve(r)
	if err != nil {
		return nil, err
	}
	tree, err := d.get(ctx, user, where)
	if err != nil {
		return nil, reason(err)
	}
	return tree, nil
}

func (d *Dir) get(ctx context.Context, user, where string) (*Tree, error) {
	if !strings.HasPrefix(where, "/") {
		return d.pinned(ctx, user, where, func(ctx context.Context) (string, error) { return d.fromURL(ctx, where) })
	}
	path, info, err := fetch.LocalPath(where, append([]string{d.cfg.Root}, d.cfg.Private...))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	case err != nil:
		return nil, err
	case info.IsDir():
		return &Tree{Dir: path}, nil
	}
	return d.pinned(ctx, user, path, func(ctx context.Context) (string, error) { return d.fromPath(ctx, path) })
}

// pinned pins the result of obtain. A user keeps the archive that it had at its first start, even
// if the repository has changed since.
func (d *Dir) pinned(ctx context.Context, user, what string, obtain func(context.Context) (key string, err error)) (*Tree, error) {
	for _, key := range d.cache.Held(user) {
		if dir, ok, err := d.cache.Pin(user, key); ok && err == nil {
			return treeOf(dir, key), nil
		}
	}
	// A collection may remove it between obtain and the pin.
	const attempts = 3
	for range attempts {
		key, err := d.flights.Do(ctx, what, obtain)
		if err != nil {
			return nil, err
		}
		dir, ok, err := d.cache.Pin(user, key)
		if err != nil {
			return nil, err
		}
		if ok {
			return treeOf(dir, key), nil
		}
	}
	return nil, errors.New("the repository was removed again each time it was unpacked; check what removes files from the cache")
}

func treeOf(dir, key string) *Tree {
	return &Tree{Dir: filepath.Join(dir, treeDir), Digest: "sha256:" + strings.TrimPrefix(key, keyPrefix)}
}

const (
	// treeDir is the directory of the files in a cache item.
	treeDir = "files"
	// keyPrefix is the start of the keys. The rest of a key is the archive's checksum.
	keyPrefix = "app-"
)

// seen is the note about the archive of a URL.
type seen struct {
	Key        string
	Validators fetch.Validators
}

func (d *Dir) fromURL(ctx context.Context, raw string) (string, error) {
	tmp, err := d.cache.Temp()
	if err != nil {
		return "", err
	}
	defer d.cache.Discard(tmp)
	var known seen
	if d.cache.ReadNote(raw, &known) && !d.cache.Has(known.Key) {
		known = seen{}
	}
	file := filepath.Join(tmp, "download")
	res, err := d.fetcher.Get(ctx, fetch.Request{URL: raw, Path: file, Known: known.Validators})
	if err != nil {
		return "", err
	}
	if res.NotModified {
		return known.Key, d.cache.WriteNote(raw, known)
	}
	key, err := d.unpack(ctx, file, fetch.Redact(raw), res.SHA256)
	if err != nil {
		return "", fmt.Errorf("repository %s: %w", fetch.Redact(raw), err)
	}
	if res.Validators.Empty() {
		return key, nil
	}
	return key, d.cache.WriteNote(raw, seen{Key: key, Validators: res.Validators})
}

func (d *Dir) fromPath(ctx context.Context, path string) (string, error) {
	tmp, err := d.cache.Temp()
	if err != nil {
		return "", err
	}
	defer d.cache.Discard(tmp)
	// Use a copy, because the owner of the file may change it while it is read.
	file := filepath.Join(tmp, "copy")
	res, err := d.fetcher.Copy(ctx, path, file, "")
	if err != nil {
		return "", err
	}
	key, err := d.unpack(ctx, file, shorten(path), res.SHA256)
	if err != nil {
		return "", fmt.Errorf("repository %s: %w", shorten(path), err)
	}
	return key, nil
}

// unpack makes sure that the cache has the files of an archive.
func (d *Dir) unpack(ctx context.Context, file, name, sum string) (string, error) {
	key := keyPrefix + sum
	err := d.cache.Put(ctx, key, func(ctx context.Context, dir string) error {
		tmp, err := d.cache.Temp()
		if err != nil {
			return err
		}
		defer d.cache.Discard(tmp)
		l := d.cfg.Limits
		a, err := image.UnpackArchive(ctx, image.ArchiveRequest{
			Unpacker: d.cfg.Unpacker, File: file, Name: name, Dir: tmp, Form: image.ArchiveShared,
			Limits: image.Limits{Bytes: l.Bytes, Entries: l.Entries, Time: l.Time, ReserveBytes: l.ReserveBytes},
		})
		if err != nil {
			return err
		}
		if len(a.Skipped) > 0 {
			d.log.Warn("device nodes left out of a repository", "paths", a.Skipped)
		}
		if err := os.Rename(a.Tree, filepath.Join(dir, treeDir)); err != nil {
			return fmt.Errorf("moving the files into the cache: %w", err)
		}
		d.log.Info("repository unpacked", "digest", "sha256:"+sum, "bytes", a.Bytes, "entries", a.Entries)
		return nil
	})
	return key, err
}

// reasons map the errors of other packages to errors of this package.
var reasons = []struct{ theirs, ours error }{
	{fetch.ErrNoSpace, ErrNoSpace},
	{image.ErrNoSpace, ErrNoSpace},
	{fetch.ErrTooLarge, ErrTooLarge},
	{image.ErrTooLarge, ErrTooLarge},
	{fetch.ErrRefused, ErrRefused},
	{image.ErrRefused, ErrRefused},
}

// reason adds this package's error to an error of the download or of the unpacker.
func reason(err error) error {
	var status *fetch.StatusError
	if errors.As(err, &status) && status.NotFound() {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if errors.Is(err, ErrNotFound) {
		return err
	}
	for _, r := range reasons {
		if errors.Is(err, r.theirs) && !errors.Is(err, r.ours) {
			return fmt.Errorf("%w: %w", r.ours, err)
		}
	}
	return err
}

// maxShown limits, in bytes, how much of an external text an error contains.
const maxShown = 200

func shorten(s string) string { return excerpt.Of(s, maxShown) }
