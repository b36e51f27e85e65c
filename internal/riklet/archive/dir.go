package archive

import (
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

// ErrNoSpace is returned when the file system of the store is full, up to what must
// stay free. Nothing is left of what was begun.
var ErrNoSpace = errors.New("no space left for repositories")

// The default limits of one repository: an App is a program and its files, not a system.
var defaults = fetch.Limits{
	Bytes: 4 << 30, Entries: 200_000, DownloadBytes: 2 << 30, Time: image.DefaultTime, Stall: image.DefaultStall,
}

// Config of a Dir.
type Config struct {
	// Root is an absolute directory for the trees. It is made when it is missing.
	Root string
	// Unpacker is the command line of rik-unpack.
	Unpacker []string
	// Limits of one repository; those that are 0 are as in defaults.
	Limits fetch.Limits
	// AllowHTTP, AllowNetworks, AllowProxy and RootCAs are those of fetch.Config.
	AllowHTTP     bool
	AllowNetworks []netip.Prefix
	AllowProxy    bool
	RootCAs       *x509.CertPool
	// Private are directories that no local repository may lead into: rik's own.
	Private []string
	// Logger gets what is unpacked and removed; nil discards it.
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

// Dir is the Store in a directory of the node.
type Dir struct {
	cfg     Config
	log     *slog.Logger
	cache   *dircache.Cache
	fetcher *fetch.Fetcher
	flights *flight.Group[string, string] // downloads: keys by URL or path
}

var _ Store = (*Dir)(nil)

// New opens the store at cfg.Root and removes what a crash left half done. Close lets go
// of the directory. Other users than root need to pass through what is above the root to
// read what is unpacked there.
func New(cfg Config) (*Dir, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
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

// Close ends what is being fetched; pins stay.
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

// version is one path component of a URL that means itself.
var version = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)

// resolve puts the version into the repository's URL or path.
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
	// A version in the place of a host would choose whom the node speaks to.
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

// pinned pins what obtain sees to that it is there. A user has one archive: what it was
// begun with it is begun again with, whatever became of the repository since.
func (d *Dir) pinned(ctx context.Context, user, what string, obtain func(context.Context) (key string, err error)) (*Tree, error) {
	for _, key := range d.cache.Held(user) {
		if dir, ok, err := d.cache.Pin(user, key); ok && err == nil {
			return treeOf(dir, key), nil
		}
	}
	// Between the two it may be collected, if somebody asked for that at just this
	// moment.
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
	// treeDir is where the files are in a thing of the shelf.
	treeDir = "files"
	// keyPrefix begins the keys; the rest is the archive's checksum.
	keyPrefix = "app-"
)

// seen is what is remembered of a URL.
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
	// A copy: who owns the file may change it while it is read.
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

// unpack sees to it that the shelf has the files of an archive.
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

// reasons are this package's names for what others found.
var reasons = []struct{ theirs, ours error }{
	{fetch.ErrNoSpace, ErrNoSpace},
	{image.ErrNoSpace, ErrNoSpace},
	{fetch.ErrTooLarge, ErrTooLarge},
	{image.ErrTooLarge, ErrTooLarge},
	{fetch.ErrRefused, ErrRefused},
	{image.ErrRefused, ErrRefused},
}

// reason gives an error of the download or of the unpacker this package's too.
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

// maxShown limits the texts of others in errors, in bytes.
const maxShown = 200

func shorten(s string) string { return excerpt.Of(s, maxShown) }
