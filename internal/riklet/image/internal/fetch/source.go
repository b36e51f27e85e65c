package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/distribution/reference"
	"github.com/docker/distribution/registry/api/errcode"
	"go.podman.io/image/v5/directory"
	"go.podman.io/image/v5/docker"
	dockerarchive "go.podman.io/image/v5/docker/archive"
	"go.podman.io/image/v5/oci/layout"
	"go.podman.io/image/v5/types"

	"rik.dev/rik/internal/riklet/image/internal/layer"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// open returns the source that the request names, and the settings to read it
// with. Archives are unpacked, or uncompressed, under the budget first: the
// library would do it without a limit.
func open(ctx context.Context, req wire.Request, budget *layer.Budget) (types.ImageSource, *types.SystemContext, error) {
	sys := &types.SystemContext{
		BigFilesTemporaryDir:     req.TempDir,
		DockerPerHostCertDirPath: req.CertDir,
		DockerRegistryUserAgent:  "rik",
	}
	if req.RegistriesConf != "" {
		sys.SystemRegistriesConfPath = req.RegistriesConf
		sys.SystemRegistriesConfDirPath = req.RegistriesConf + ".d"
	}
	ref, err := openReference(ctx, req, sys, budget)
	if err != nil {
		return nil, nil, err
	}
	src, err := ref.NewImageSource(ctx, sys)
	if err != nil {
		return nil, nil, reason(err)
	}
	return src, sys, nil
}

func openReference(ctx context.Context, req wire.Request, sys *types.SystemContext, budget *layer.Budget) (types.ImageReference, error) {
	switch req.Transport {
	case "docker":
		return registryReference(req, sys)
	case "oci":
		return layoutReference(req.Target, filepath.Clean)
	case "oci-archive":
		file, _, _ := strings.Cut(req.Target, ":")
		dir := filepath.Join(req.TempDir, "archive")
		if err := unpackLayout(ctx, file, dir, budget); err != nil {
			return nil, fmt.Errorf("reading the archive %s: %w", file, reason(err))
		}
		return layoutReference(req.Target, func(string) string { return dir })
	case "docker-archive":
		file, image, tagged := strings.Cut(req.Target, ":")
		file, err := plainArchive(ctx, file, req.TempDir, budget)
		if err != nil {
			return nil, fmt.Errorf("reading the archive %s: %w", file, reason(err))
		}
		if tagged {
			file += ":" + image
		}
		return dockerarchive.ParseReference(file)
	case "dir":
		if _, err := os.Stat(req.Target); err != nil {
			return nil, reason(err)
		}
		return directory.NewReference(req.Target)
	}
	return nil, fmt.Errorf("%w: transport %q", wire.ErrInvalidReference, req.Transport)
}

// layoutReference takes the directory of the layout from where.
func layoutReference(target string, where func(string) string) (types.ImageReference, error) {
	dir, tag, _ := strings.Cut(target, ":")
	dir = where(dir)
	if _, err := os.Stat(filepath.Join(dir, "index.json")); err != nil {
		return nil, reason(err)
	}
	return layout.NewReference(dir, tag)
}

func registryReference(req wire.Request, sys *types.SystemContext) (types.ImageReference, error) {
	named, err := reference.ParseNormalizedNamed(req.Target)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrInvalidReference, err)
	}
	if sys.DockerAuthConfig, err = credentials(req.Auth, named); err != nil {
		return nil, err
	}
	// Registries are spoken to over TLS; one on this machine may go without.
	// registries.conf can allow more.
	if isLoopback(reference.Domain(named)) {
		sys.DockerInsecureSkipTLSVerify = types.OptionalBoolTrue
	}
	return docker.NewReference(named)
}

func isLoopback(domain string) bool {
	if addr, err := netip.ParseAddrPort(domain); err == nil {
		return addr.Addr().IsLoopback()
	}
	host, _, _ := strings.Cut(domain, ":")
	if addr, err := netip.ParseAddr(strings.Trim(domain, "[]")); err == nil {
		return addr.IsLoopback()
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.IsLoopback()
	}
	return host == "localhost"
}

// reason finds what an error of the libraries means for us.
func reason(err error) error {
	var notInLayout layout.ImageNotFoundError
	var unauthorized docker.ErrUnauthorizedForCredentials
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &notInLayout):
		return fmt.Errorf("%w: %w", wire.ErrNotPresent, err)
	case errors.As(err, &unauthorized):
		return fmt.Errorf("%w: %w", wire.ErrUnauthorized, err)
	}
	var coded errcode.ErrorCoder
	if errors.As(err, &coded) {
		switch coded.ErrorCode().Descriptor().Value {
		case "MANIFEST_UNKNOWN", "NAME_UNKNOWN":
			return fmt.Errorf("%w: %w", wire.ErrNotPresent, err)
		case "UNAUTHORIZED", "DENIED":
			return fmt.Errorf("%w: %w", wire.ErrUnauthorized, err)
		}
	}
	return err
}
