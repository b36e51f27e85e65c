package fetch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/image"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// plan is a resolved image: what to transfer and what it becomes.
type plan struct {
	digest digest.Digest
	config v1.Image
	layers []types.BlobInfo
	chain  []digest.Digest
}

// maxLayers is what Docker allows. overlayfs stacks up to 500, but their names
// must fit one page of mount options.
const maxLayers = 128

// maxIndexDepth bounds indexes that point to indexes.
const maxIndexDepth = 4

// layerTypes are the media types of layers that can be unpacked. Those of
// "non-distributable" layers are not among them: their content comes from
// addresses that the manifest chooses.
var layerTypes = []string{
	v1.MediaTypeImageLayer, v1.MediaTypeImageLayerGzip, v1.MediaTypeImageLayerZstd,
	manifest.DockerV2SchemaLayerMediaTypeUncompressed, manifest.DockerV2Schema2LayerMediaType,
	"application/vnd.docker.image.rootfs.diff.tar.zstd",
}

var configTypes = []string{v1.MediaTypeImageConfig, manifest.DockerV2Schema2ConfigMediaType}

// resolve reads the manifest, the one for this platform if there are several,
// and the configuration, and checks both.
func resolve(ctx context.Context, src types.ImageSource, sys *types.SystemContext) (*plan, error) {
	top, unparsed, err := instance(ctx, src, sys)
	if err != nil {
		return nil, err
	}
	img, err := image.FromUnparsedImage(ctx, sys, unparsed)
	if err != nil {
		return nil, fmt.Errorf("%w: manifest: %w", wire.ErrRefused, err)
	}
	if mt := img.ConfigInfo().MediaType; !slices.Contains(configTypes, mt) {
		return nil, fmt.Errorf("%w: the configuration has the media type %q, this is no container image", wire.ErrUnsupported, mt)
	}
	config, err := img.OCIConfig(ctx)
	if err != nil {
		return nil, configError(reason(err))
	}
	p := &plan{digest: top, config: *config, layers: img.LayerInfos()}
	if err := p.check(); err != nil {
		return nil, err
	}
	p.chain = identity.ChainIDs(slices.Clone(config.RootFS.DiffIDs))
	return p, nil
}

// instance finds the manifest of one image and the digest of what the
// reference named, which is an index for images of several platforms.
func instance(ctx context.Context, src types.ImageSource, sys *types.SystemContext) (digest.Digest, *image.UnparsedImage, error) {
	var top digest.Digest
	unparsed := image.UnparsedInstance(src, nil)
	for range maxIndexDepth {
		blob, mt, err := unparsed.Manifest(ctx)
		if err != nil {
			return "", nil, fmt.Errorf("manifest: %w", reason(err))
		}
		if mt == "" {
			mt = manifest.GuessMIMEType(blob)
		}
		if top == "" {
			if top, err = manifest.Digest(blob); err != nil {
				return "", nil, fmt.Errorf("%w: manifest: %w", wire.ErrRefused, err)
			}
		}
		switch mt {
		case v1.MediaTypeImageManifest, manifest.DockerV2Schema2MediaType:
			return top, unparsed, nil
		case v1.MediaTypeImageIndex, manifest.DockerV2ListMediaType:
		default:
			return "", nil, fmt.Errorf("%w: the manifest has the media type %q", wire.ErrUnsupported, mt)
		}
		list, err := manifest.ListFromBlob(blob, mt)
		if err != nil {
			return "", nil, fmt.Errorf("%w: index: %w", wire.ErrRefused, err)
		}
		chosen, err := list.ChooseInstance(sys)
		if err != nil {
			return "", nil, fmt.Errorf("%w: the index has none for linux/%s: %w", wire.ErrPlatform, runtime.GOARCH, err)
		}
		unparsed = image.UnparsedInstance(src, &chosen)
	}
	return "", nil, fmt.Errorf("%w: indexes within indexes, more than %d deep", wire.ErrRefused, maxIndexDepth)
}

// configError: a configuration that does not match its digest, or is no JSON,
// has no error of its own in the library; what else can go wrong is known.
func configError(err error) error {
	var network net.Error
	if errors.Is(err, wire.ErrNotPresent) || errors.Is(err, wire.ErrUnauthorized) || errors.As(err, &network) {
		return fmt.Errorf("configuration: %w", err)
	}
	return fmt.Errorf("%w: configuration: %w", wire.ErrRefused, err)
}

func (p *plan) check() error {
	c := p.config
	if (c.Architecture != "" && c.Architecture != runtime.GOARCH) || (c.OS != "" && c.OS != "linux") {
		return fmt.Errorf("%w: it is for %s/%s, this node is linux/%s", wire.ErrPlatform, c.OS, c.Architecture, runtime.GOARCH)
	}
	if len(p.layers) != len(c.RootFS.DiffIDs) {
		return fmt.Errorf("%w: the manifest has %d layers and the configuration %d", wire.ErrRefused, len(p.layers), len(c.RootFS.DiffIDs))
	}
	if len(p.layers) == 0 || len(p.layers) > maxLayers {
		return fmt.Errorf("%w: %d layers, 1 to %d are possible", wire.ErrRefused, len(p.layers), maxLayers)
	}
	for i, l := range p.layers {
		if !slices.Contains(layerTypes, l.MediaType) || len(l.URLs) > 0 {
			return fmt.Errorf("%w: layer %d has the media type %q", wire.ErrUnsupported, i+1, l.MediaType)
		}
		for what, d := range map[string]digest.Digest{"digest": l.Digest, "diff_id": c.RootFS.DiffIDs[i]} {
			if err := d.Validate(); err != nil {
				return fmt.Errorf("%w: layer %d: %s %q: %w", wire.ErrRefused, i+1, what, d, err)
			}
		}
	}
	return nil
}
