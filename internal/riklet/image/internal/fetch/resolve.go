package fetch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/pkg/blobinfocache/none"
	"go.podman.io/image/v5/types"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// plan is a resolved image: the blobs to transfer and the resulting layers.
type plan struct {
	digest digest.Digest
	config v1.Image
	layers []types.BlobInfo
	chain  []digest.Digest
}

// maxLayers is Docker's limit. overlayfs stacks up to 500, but their names must fit into one
// page of mount options.
const maxLayers = 128

// maxIndexDepth limits indexes that point to indexes.
const maxIndexDepth = 4

// layerTypes lists the media types of layers that can be unpacked. It omits "non-distributable"
// layers, because the manifest chooses the addresses of their content.
var layerTypes = []string{
	v1.MediaTypeImageLayer, v1.MediaTypeImageLayerGzip, v1.MediaTypeImageLayerZstd,
	manifest.DockerV2SchemaLayerMediaTypeUncompressed, manifest.DockerV2Schema2LayerMediaType,
	"application/vnd.docker.image.rootfs.diff.tar.zstd",
}

var configTypes = []string{v1.MediaTypeImageConfig, manifest.DockerV2Schema2ConfigMediaType}

// resolve reads and validates the manifest, the one for this platform if there are several, and
// the configuration.
func resolve(ctx context.Context, src *source, sys *types.SystemContext) (*plan, error) {
	top, m, err := instance(ctx, src, sys)
	if err != nil {
		return nil, err
	}
	if mt := m.ConfigInfo().MediaType; !slices.Contains(configTypes, mt) {
		return nil, fmt.Errorf("%w: the configuration has the media type %q, so this is not a container image", wire.ErrUnsupported, mt)
	}
	p := &plan{digest: top}
	for _, l := range m.LayerInfos() {
		p.layers = append(p.layers, l.BlobInfo)
	}
	if p.config, err = configuration(ctx, src, m.ConfigInfo()); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	p.chain = identity.ChainIDs(slices.Clone(p.config.RootFS.DiffIDs))
	return p, nil
}

// instance finds the manifest of one image. It also returns the digest of the object that the
// reference names, which is an index for images of several platforms.
func instance(ctx context.Context, src *source, sys *types.SystemContext) (digest.Digest, manifest.Manifest, error) {
	var top digest.Digest
	var chosen *digest.Digest
	want := src.top
	for range maxIndexDepth {
		blob, mt, err := src.GetManifest(ctx, chosen)
		if err != nil {
			return "", nil, fmt.Errorf("manifest: %w", src.failure(err))
		}
		if err := checkContent(blob, want.Digest, want.Size); err != nil {
			return "", nil, fmt.Errorf("manifest: %w", err)
		}
		if top == "" {
			if top, err = manifest.Digest(blob); err != nil {
				return "", nil, fmt.Errorf("%w: manifest: %w", wire.ErrRefused, err)
			}
		}
		switch mt = cmp.Or(mt, want.MediaType, manifest.GuessMIMEType(blob)); mt {
		case v1.MediaTypeImageManifest, manifest.DockerV2Schema2MediaType:
			m, err := manifest.FromBlob(blob, mt)
			if err != nil {
				return "", nil, fmt.Errorf("%w: manifest: %w", wire.ErrRefused, err)
			}
			return top, m, nil
		case v1.MediaTypeImageIndex, manifest.DockerV2ListMediaType:
		default:
			return "", nil, fmt.Errorf("%w: the manifest has the media type %q", wire.ErrUnsupported, mt)
		}
		if want, err = choosePlatform(blob, mt, sys); err != nil {
			return "", nil, err
		}
		chosen = &want.Digest
	}
	return "", nil, fmt.Errorf("%w: the indexes are nested more than %d deep", wire.ErrRefused, maxIndexDepth)
}

// alsoRuns lists the other architectures whose programs a processor can run.
var alsoRuns = map[string][]string{"amd64": {"386"}}

// choosePlatform finds the manifest for this machine in an index.
func choosePlatform(index []byte, mt string, sys *types.SystemContext) (v1.Descriptor, error) {
	list, err := manifest.ListFromBlob(index, mt)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("%w: index: %w", wire.ErrRefused, err)
	}
	chosen, err := list.ChooseInstance(sys)
	for _, also := range alsoRuns[runtime.GOARCH] {
		if err == nil {
			break
		}
		second := *sys
		second.ArchitectureChoice = also
		chosen, err = list.ChooseInstance(&second)
	}
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("%w: the index has no image for linux/%s: %w", wire.ErrPlatform, runtime.GOARCH, err)
	}
	entry, err := list.Instance(chosen)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("%w: index: %w", wire.ErrRefused, err)
	}
	if err := checkDescriptor(entry.Digest, entry.Size); err != nil {
		return v1.Descriptor{}, fmt.Errorf("index: manifest: %w", err)
	}
	return v1.Descriptor{Digest: entry.Digest, Size: entry.Size, MediaType: entry.MediaType}, nil
}

// configuration reads the configuration that the manifest names.
func configuration(ctx context.Context, src *source, info types.BlobInfo) (v1.Image, error) {
	if err := checkDescriptor(info.Digest, info.Size); err != nil {
		return v1.Image{}, err
	}
	body, _, err := src.GetBlob(ctx, info, none.NoCache)
	if err != nil {
		return v1.Image{}, src.failure(err)
	}
	defer func() { _ = body.Close() }()
	blob, err := readAtMost(body)
	if err != nil {
		return v1.Image{}, src.failure(err)
	}
	if err := checkContent(blob, info.Digest, info.Size); err != nil {
		return v1.Image{}, err
	}
	var config v1.Image
	if err := json.Unmarshal(blob, &config); err != nil {
		return v1.Image{}, fmt.Errorf("%w: %w", wire.ErrRefused, err)
	}
	return config, nil
}

// checkDescriptor validates the descriptor of content in a manifest or index, before the content
// is requested.
func checkDescriptor(d digest.Digest, size int64) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("%w: digest %.200q: %w", wire.ErrRefused, d, err)
	}
	if size < 0 {
		return fmt.Errorf("%w: the descriptor of %s has an impossible size, %d bytes", wire.ErrRefused, d, size)
	}
	return nil
}

// checkContent compares content with its descriptor. An empty digest and a size of -1 are
// unknown.
func checkContent(data []byte, want digest.Digest, size int64) error {
	if want != "" {
		// Docker's first manifests are signed, and their digest does not cover the signature.
		got, err := manifest.DigestWithAlgorithm(data, want.Algorithm())
		if err != nil {
			return fmt.Errorf("%w: %w", wire.ErrRefused, err)
		}
		if got != want {
			return fmt.Errorf("%w: it is %[3]s instead of %[2]s", wire.ErrDigest, want, got)
		}
	}
	if size >= 0 && int64(len(data)) != size {
		return fmt.Errorf("%w: the descriptor of %s announces %d bytes, and it has %d", wire.ErrRefused, want, size, len(data))
	}
	return nil
}

func (p *plan) check() error {
	c := p.config
	foreign := c.Architecture != "" && c.Architecture != runtime.GOARCH && !slices.Contains(alsoRuns[runtime.GOARCH], c.Architecture)
	if foreign || (c.OS != "" && c.OS != "linux") {
		return fmt.Errorf("%w: it is for %s/%s, this node is linux/%s", wire.ErrPlatform, c.OS, c.Architecture, runtime.GOARCH)
	}
	if len(p.layers) != len(c.RootFS.DiffIDs) {
		return fmt.Errorf("%w: the manifest has %d layers, and the configuration has %d", wire.ErrRefused, len(p.layers), len(c.RootFS.DiffIDs))
	}
	if len(p.layers) == 0 || len(p.layers) > maxLayers {
		return fmt.Errorf("%w: the image has %d layers, and 1 to %d are allowed", wire.ErrRefused, len(p.layers), maxLayers)
	}
	for i, l := range p.layers {
		if !slices.Contains(layerTypes, l.MediaType) || len(l.URLs) > 0 {
			return fmt.Errorf("%w: layer %d has the media type %q", wire.ErrUnsupported, i+1, l.MediaType)
		}
		if err := checkDescriptor(l.Digest, l.Size); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
		if d := c.RootFS.DiffIDs[i]; d.Validate() != nil {
			return fmt.Errorf("%w: layer %d: diff_id %.200q: %w", wire.ErrRefused, i+1, d, d.Validate())
		}
	}
	return nil
}
