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

// Images is the image store as far as it is needed here; *image.Store.
type Images interface {
	Mount(ctx context.Context, id string, img *image.Image) (rootfs string, err error)
	Unmount(ctx context.Context, id string, keepWritable bool) error
	Mounted() ([]string, error)
}

// The default limits of one block image, those of OCI images.
var defaults = fetch.Limits{
	Bytes: 16 << 30, Entries: 1_000_000, DownloadBytes: 8 << 30, Time: image.DefaultTime, Stall: image.DefaultStall,
}

// Config of a Dir.
type Config struct {
	// Root is an absolute directory for the images. It is made when it is missing.
	Root string
	// Images mounts pulled images; FromImage needs it.
	Images Images
	// Unpacker is the command line of rik-unpack; FromURL needs it.
	Unpacker []string
	// MkfsPath and DebugfsPath are mke2fs and debugfs of e2fsprogs; "" looks for them
	// on the PATH and in the directories of the system's programs.
	MkfsPath, DebugfsPath string
	// Limits of one image; those that are 0 are as in defaults.
	Limits fetch.Limits
	// AllowHTTP accepts URLs without TLS.
	AllowHTTP bool
	// AllowNetworks are networks that URLs may lead to although they are not public:
	// an internal mirror, the node itself.
	AllowNetworks []netip.Prefix
	// AllowProxy uses the proxy of the environment, which then chooses the address.
	AllowProxy bool
	// RootCAs vouch for servers; those of the system when nil.
	RootCAs *x509.CertPool
	// AllowPath accepts an absolute path of the node in place of a URL.
	AllowPath bool
	// Private are directories that no path may lead into: rik's own.
	Private []string
	// Logger gets what is made and removed; nil discards it.
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
