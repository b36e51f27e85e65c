package disk

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"rik.dev/rik/internal/riklet/fetch"
	"rik.dev/rik/internal/riklet/image"
)

// ErrInvalidConfig is returned by New.
var ErrInvalidConfig = errors.New("invalid configuration of the block images")

// Images has the methods of *image.Store that this package uses.
type Images interface {
	Mount(ctx context.Context, id string, img *image.Image) (rootfs string, err error)
	Unmount(ctx context.Context, id string, keepWritable bool) error
	Mounted() ([]string, error)
}

// The default limits of one block image, the same as for OCI images.
var defaults = fetch.Limits{
	Bytes: 16 << 30, Entries: 1_000_000, DownloadBytes: 8 << 30, Time: image.DefaultTime, Stall: image.DefaultStall,
}

// Config configures a Dir.
type Config struct {
	// Root is an absolute directory for the images. It is created if it does not exist.
	Root string
	// Images mounts pulled images; FromImage requires it.
	Images Images
	// Unpacker is the command line of rik-unpack; FromURL requires it.
	Unpacker []string
	// MkfsPath and DebugfsPath are mke2fs and debugfs of e2fsprogs. If "", they are searched on
	// the PATH and in the system's program directories.
	MkfsPath, DebugfsPath string
	// Limits of one image; 0 means the value in defaults.
	Limits fetch.Limits
	// AllowHTTP accepts URLs without TLS.
	AllowHTTP bool
	// AllowNetworks lists networks that URLs may lead to although they are not public, such as
	// an internal mirror or the node itself.
	AllowNetworks []netip.Prefix
	// AllowProxy uses the proxy of the environment, which then chooses the address.
	AllowProxy bool
	// RootCAs verify the certificates of servers; nil means those of the system.
	RootCAs *x509.CertPool
	// AllowPath accepts an absolute path of the node in place of a URL.
	AllowPath bool
	// Private lists rik's own directories. No path may lead into them.
	Private []string
	// Logger reports images that are created and removed; nil discards.
	Logger *slog.Logger
}

// Validate reports every problem.
func (c *Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Root) || filepath.Clean(c.Root) == "/" {
		errs = append(errs, fmt.Errorf("root %q is not an absolute path below /", c.Root))
	}
	for name, path := range map[string]string{"mkfs": c.MkfsPath, "debugfs": c.DebugfsPath} {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s %q is not an absolute path", name, path))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	return nil
}
