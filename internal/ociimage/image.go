// Package ociimage builds OCI images without a registry or a container engine: from a
// description in memory to an OCI layout, an archive, a Docker archive or a directory. It also
// has an HTTP handler that serves a layout like a registry. "rik demo", the scripts of the demos and
// tests use it.
package ociimage

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"runtime"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// File is one entry of a layer. At most one of Content, Source, Link, HardLink and Dir is set;
// without any, it is an empty file.
type File struct {
	Content  []byte
	Source   string // a file of this machine whose content is copied
	Link     string // target of a symbolic link
	HardLink string // path, in the layer, of the file to link to
	Dir      bool
	Mode     fs.FileMode // 0644 (0755 for directories and Source files) if 0
	UID, GID int
}

// Compression is the compression of a layer blob.
type Compression string

// The compressions of a layer; an empty value means Gzip.
const (
	Gzip         Compression = "gzip"
	Zstd         Compression = "zstd"
	Uncompressed Compression = "none"
)

// Layer is one layer of an image.
type Layer struct {
	Files       map[string]File
	Tar         []byte // a complete archive, instead of Files
	Compression Compression
	MediaType   string // the type in the manifest; "" means that of Compression
}

// Spec describes an image. Files is the first layer; Layers are on top of it.
type Spec struct {
	Files        map[string]File
	Layers       []Layer
	Entrypoint   []string
	Cmd          []string
	Env          []string
	User         string
	WorkingDir   string
	StopSignal   string
	ExposedPorts []string // "80/tcp"
	Labels       map[string]string
	Architecture string // "" means this machine's
}

// built is an image in memory: its blobs by digest, and their descriptors.
type built struct {
	blobs    map[digest.Digest][]byte
	manifest v1.Descriptor
	config   v1.Descriptor
	layers   []v1.Descriptor
	tars     [][]byte // uncompressed layers, in order, for Docker archives
}

// epoch is the time of all files and configurations, so that a Spec always has the same digest.
var epoch = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

func (b *built) add(mediaType string, data []byte) v1.Descriptor {
	d := digest.FromBytes(data)
	b.blobs[d] = data
	return v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

// build packs the layers, the configuration and the manifest of spec.
func build(spec Spec) (*built, error) {
	b := &built{blobs: map[digest.Digest][]byte{}}
	layers := spec.Layers
	if spec.Files != nil {
		layers = append([]Layer{{Files: spec.Files}}, layers...)
	}
	config := configOf(spec)
	for i, l := range layers {
		plain, packed, mediaType, err := pack(l)
		if err != nil {
			return nil, fmt.Errorf("packing layer %d: %w", i, err)
		}
		b.tars = append(b.tars, plain)
		b.layers = append(b.layers, b.add(mediaType, packed))
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(plain))
	}
	blob, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	b.config = b.add(v1.MediaTypeImageConfig, blob)
	blob, err = json.Marshal(v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest,
		Config:    b.config,
		Layers:    b.layers,
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the manifest: %w", err)
	}
	b.manifest = b.add(v1.MediaTypeImageManifest, blob)
	return b, nil
}

func configOf(spec Spec) v1.Image {
	arch := spec.Architecture
	if arch == "" {
		arch = runtime.GOARCH
	}
	created := epoch
	img := v1.Image{
		Created:  &created,
		Platform: v1.Platform{OS: "linux", Architecture: arch},
		Config: v1.ImageConfig{
			Entrypoint: spec.Entrypoint,
			Cmd:        spec.Cmd,
			Env:        spec.Env,
			User:       spec.User,
			WorkingDir: spec.WorkingDir,
			StopSignal: spec.StopSignal,
			Labels:     spec.Labels,
		},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{}},
	}
	for _, port := range spec.ExposedPorts {
		if img.Config.ExposedPorts == nil {
			img.Config.ExposedPorts = map[string]struct{}{}
		}
		img.Config.ExposedPorts[port] = struct{}{}
	}
	return img
}
