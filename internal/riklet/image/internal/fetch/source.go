package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/distribution/reference"
	"github.com/docker/distribution/registry/api/errcode"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/docker"
	dockerarchive "go.podman.io/image/v5/docker/archive"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"

	"rik.dev/rik/internal/riklet/image/internal/layer"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// transport has the methods of the library's image sources that this package uses.
type transport interface {
	GetManifest(ctx context.Context, instance *digest.Digest) (data []byte, mediaType string, err error)
	GetBlob(ctx context.Context, info types.BlobInfo, cache types.BlobInfoCache) (io.ReadCloser, int64, error)
	HasThreadSafeGetBlob() bool
	Close() error
}

// source is an open reference.
type source struct {
	transport
	// top is the manifest or index that the reference names. Only the fields that the reference
	// or the layout determines are set.
	top   v1.Descriptor
	local bool
	gate  *gate // nil when local
}

// Close also ends the source's connections.
func (s *source) Close() error {
	err := s.transport.Close()
	if s.gate != nil {
		err = errors.Join(err, s.gate.Close())
	}
	return err
}

var unknown = v1.Descriptor{Size: -1}

// failure adds the reason to an error. Files of this machine that cannot be parsed are damaged,
// so the error is permanent. An error of a registry may be temporary.
func (s *source) failure(err error) error {
	if s.local {
		return refuseDamage(reason(err))
	}
	return reason(s.gate.explain(err))
}

// noAuthFile does not exist. Without a path, the library reads credentials from the home
// directory of the user who runs the node, and every tenant's pulls would use them.
const noAuthFile = "/nonexistent/rik-registry-credentials.json"

// open opens the reference of a request. It also returns the settings for choosing a platform.
// It first unpacks or decompresses archives under the budget, because the library would do that
// without a limit.
func open(ctx context.Context, req wire.Request, budget *layer.Budget, m *meter) (*source, *types.SystemContext, error) {
	sys := &types.SystemContext{
		BigFilesTemporaryDir:     req.TempDir,
		DockerPerHostCertDirPath: req.CertDir,
		DockerRegistryUserAgent:  "rik",
		AuthFilePath:             req.AuthFile,
	}
	sys.AuthFilePath = cmp.Or(sys.AuthFilePath, noAuthFile)
	if req.RegistriesConf != "" {
		sys.SystemRegistriesConfPath = req.RegistriesConf
		sys.SystemRegistriesConfDirPath = req.RegistriesConf + ".d"
	}
	if req.Transport == "docker" {
		src, err := openRegistry(ctx, req, sys)
		return src, sys, err
	}
	src, err := openLocal(ctx, req, sys, budget, m)
	if err != nil {
		return nil, nil, refuseDamage(reason(err))
	}
	return src, sys, nil
}

func openLocal(ctx context.Context, req wire.Request, sys *types.SystemContext, budget *layer.Budget, m *meter) (*source, error) {
	path, tag, tagged := strings.Cut(req.Target, ":")
	switch req.Transport {
	case "oci":
		return openLayout(path, tag)
	case "oci-archive":
		dir := filepath.Join(req.TempDir, "archive")
		if err := unpackLayout(ctx, path, dir, budget, m); err != nil {
			return nil, fmt.Errorf("reading the archive %s: %w", path, err)
		}
		return openLayout(dir, tag)
	case "docker-archive":
		file, err := plainArchive(ctx, path, req.TempDir, budget, m)
		if err != nil {
			return nil, fmt.Errorf("reading the archive %s: %w", path, err)
		}
		if tagged {
			file += ":" + tag
		}
		m.begin(readingArchive, 0) // by the library, which reports no progress
		ref, err := dockerarchive.ParseReference(file)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", wire.ErrInvalidReference, err)
		}
		src, err := ref.NewImageSource(ctx, sys)
		if err != nil {
			return nil, err
		}
		return &source{transport: src, top: unknown, local: true}, nil
	case "dir":
		return openDir(req.Target)
	}
	return nil, fmt.Errorf("%w: transport %q", wire.ErrInvalidReference, req.Transport)
}

func openRegistry(ctx context.Context, req wire.Request, sys *types.SystemContext) (*source, error) {
	named, err := reference.ParseNormalizedNamed(req.Target)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrInvalidReference, err)
	}
	// The files may have changed since the node started.
	if err := checkRegistries(req); err != nil {
		return nil, err
	}
	if sys.DockerAuthConfig, err = credentials(req.Auth, named); err != nil {
		return nil, err
	}
	// Registries must use TLS, except on this machine. registries.conf can allow more.
	here, err := onlyHere(named, sys)
	if err != nil {
		return nil, err
	}
	if here {
		sys.DockerInsecureSkipTLSVerify = types.OptionalBoolTrue
	}
	ref, err := docker.NewReference(named)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrInvalidReference, err)
	}
	gate, err := openGate(req, named, sys)
	if err != nil {
		return nil, err
	}
	src, err := ref.NewImageSource(ctx, sys)
	if err != nil {
		return nil, errors.Join(reason(gate.explain(err)), gate.Close())
	}
	s := &source{transport: src, top: unknown, gate: gate}
	if digested, ok := named.(reference.Digested); ok {
		s.top.Digest = digested.Digest()
	}
	return s, nil
}

// onlyHere reports whether a pull asks only registries on this machine. The library's setting for a
// pull without TLS also applies to mirrors.
func onlyHere(named reference.Named, sys *types.SystemContext) (bool, error) {
	if !isLoopback(reference.Domain(named)) {
		return false, nil
	}
	configured, err := sysregistriesv2.FindRegistry(sys, named.Name())
	if err != nil {
		return false, fmt.Errorf("reading the node's configuration of registries: %w", err)
	}
	return configured == nil || len(configured.Mirrors) == 0 && (configured.Location == "" || isLoopback(configured.Location)), nil
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

// reason maps an error of the libraries to one of this package.
func reason(err error) error {
	var unauthorized docker.ErrUnauthorizedForCredentials
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
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
