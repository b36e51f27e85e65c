package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"rik.dev/rik/internal/riklet/dircache"
	"rik.dev/rik/internal/riklet/fetch"
	"rik.dev/rik/internal/riklet/flight"
)

// imageFile is the name of the ext4 image in its directory of the cache.
const imageFile = "root.ext4"

// Dir is a Store in a directory of the node.
type Dir struct {
	cfg   Config
	log   *slog.Logger
	cache *dircache.Cache
	tools tools

	fetcher *fetch.Fetcher
	flights *flight.Group[string, string] // downloads: keys are the requests
}

var _ Store = (*Dir)(nil)

// New opens the store at cfg.Root, and removes what a crash left: incomplete images and the
// mounts for their creation. Close releases the directory.
func New(cfg Config) (*Dir, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Limits = cfg.Limits.Or(defaults)
	s, err := dircache.Open(cfg.Root, cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("opening the block images at %s: %w", cfg.Root, err)
	}
	if cfg.Limits.ReserveBytes, err = reserve(cfg); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	d := &Dir{
		cfg: cfg, log: cfg.Logger, cache: s,
		tools:   tools{mkfs: cfg.MkfsPath, debugfs: cfg.DebugfsPath},
		flights: flight.New[string, string](dircache.ErrClosed),
		fetcher: fetch.New(fetch.Config{
			AllowHTTP: cfg.AllowHTTP, AllowNetworks: cfg.AllowNetworks, AllowProxy: cfg.AllowProxy, RootCAs: cfg.RootCAs,
			Bytes: cfg.Limits.DownloadBytes, Time: cfg.Limits.Time, Stall: cfg.Limits.Stall, ReserveBytes: cfg.Limits.ReserveBytes,
		}),
	}
	if err := d.unmountLeftovers(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return d, nil
}

// Close cancels the creation of images. Pins stay.
func (d *Dir) Close() error {
	d.flights.Close()
	return d.cache.Close()
}

// unmountLeftovers removes the mounts of builds that did not complete.
func (d *Dir) unmountLeftovers() error {
	if d.cfg.Images == nil {
		return nil
	}
	ids, err := d.cfg.Images.Mounted()
	if err != nil {
		return fmt.Errorf("listing leftover mounts: %w", err)
	}
	var errs []error
	for _, id := range ids {
		if strings.HasPrefix(id, mountPrefix) {
			errs = append(errs, d.cfg.Images.Unmount(context.Background(), id, false))
		}
	}
	return errors.Join(errs...)
}

// Release implements Store.
func (d *Dir) Release(user string) error { return d.cache.Release(user) }

// Users implements Store.
func (d *Dir) Users() ([]string, error) { return d.cache.Users() }

// Collect implements Store.
func (d *Dir) Collect(ctx context.Context, olderThan time.Duration) error {
	return d.cache.Collect(ctx, olderThan)
}

// Link creates a hard link to the image at path, which must be on the same file system and not
// exist. A machine's own directory thus gives the machine's user access to its images, while the
// store stays closed. The caller only has to remove the link afterward.
func (i *Image) Link(path string) error {
	if err := os.Link(i.Path, path); err != nil {
		return fmt.Errorf("linking the block image %s: %w", i.Digest, err)
	}
	return nil
}

// reserve returns the space that must stay free on the file system of the store.
func reserve(cfg Config) (int64, error) {
	if cfg.Limits.ReserveBytes > 0 {
		return cfg.Limits.ReserveBytes, nil
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(cfg.Root, &st); err != nil {
		return 0, fmt.Errorf("reading the free space of %s: %w", cfg.Root, err)
	}
	return min(int64(st.Blocks)*st.Bsize/50, 512<<20), nil
}

// checkSpace refuses to start if the result would not fit.
func (d *Dir) checkSpace(dir string, need int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return fmt.Errorf("reading the free space of %s: %w", dir, err)
	}
	reserve := d.cfg.Limits.ReserveBytes
	if free := int64(st.Bavail) * st.Bsize; free-need < reserve {
		return fmt.Errorf("%w: %d bytes are free at %s, %d must stay free, and %d are needed; remove files or instances, or grow the file system",
			ErrNoSpace, free, dir, reserve, need)
	}
	return nil
}

// classify adds the reason to errors of the file system.
func classify(err error) error {
	if err != nil && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) && !errors.Is(err, ErrNoSpace) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// open returns a complete image.
func open(dir, digest string) (*Image, error) {
	path := filepath.Join(dir, imageFile)
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrInvalid
	}
	if err != nil {
		return nil, fmt.Errorf("reading the block image %s: %w", digest, err)
	}
	return &Image{Digest: digest, Path: path, Bytes: info.Size()}, nil
}
