package ociimage

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Write builds spec into the OCI layout at dir under the tag ref, and returns the manifest's
// digest. It creates the layout if necessary. An image that had the tag before loses it.
func Write(dir, ref string, spec Spec) (string, error) {
	b, err := build(spec)
	if err != nil {
		return "", err
	}
	if err := writeBlobs(filepath.Join(dir, "blobs"), b); err != nil {
		return "", err
	}
	layout, err := json.Marshal(v1.ImageLayout{Version: v1.ImageLayoutVersion})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, v1.ImageLayoutFile), layout, 0o644); err != nil {
		return "", err
	}
	return b.manifest.Digest.String(), addToIndex(filepath.Join(dir, v1.ImageIndexFile), ref, b.manifest)
}

// WriteIndex adds, under the tag ref, an image index of the images in specs, one for each
// platform.
func WriteIndex(dir, ref string, specs ...Spec) (string, error) {
	index := v1.Index{Versioned: versioned(), MediaType: v1.MediaTypeImageIndex}
	all := &built{blobs: map[digest.Digest][]byte{}}
	for _, spec := range specs {
		b, err := build(spec)
		if err != nil {
			return "", err
		}
		platform := configOf(spec).Platform
		b.manifest.Platform = &platform
		index.Manifests = append(index.Manifests, b.manifest)
		maps.Copy(all.blobs, b.blobs)
	}
	data, err := json.Marshal(index)
	if err != nil {
		return "", err
	}
	top := all.add(v1.MediaTypeImageIndex, data)
	if err := writeBlobs(filepath.Join(dir, "blobs"), all); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, v1.ImageLayoutFile), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return "", err
	}
	return top.Digest.String(), addToIndex(filepath.Join(dir, v1.ImageIndexFile), ref, top)
}

// WriteArchive builds spec into an oci-archive: a tar of an OCI layout.
func WriteArchive(file, ref string, spec Spec) (string, error) {
	return archive(file, func(dir string) (string, error) { return Write(dir, ref, spec) })
}

// WriteIndexArchive builds an image index, as WriteIndex does, into an oci-archive.
func WriteIndexArchive(file, ref string, specs ...Spec) (string, error) {
	return archive(file, func(dir string) (string, error) { return WriteIndex(dir, ref, specs...) })
}

// archive packs the layout that write creates.
func archive(file string, write func(dir string) (string, error)) (string, error) {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".layout")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	d, err := write(dir)
	if err != nil {
		return "", err
	}
	return d, tarDir(file, dir)
}

// WriteDockerArchive builds spec into an archive like that of "docker save", under the name ref
// ("example.com/app:1") and the names in more. It returns the configuration's digest.
func WriteDockerArchive(file, ref string, spec Spec, more ...string) (string, error) {
	b, err := build(spec)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(file), ".docker")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	item := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: b.config.Digest.Encoded() + ".json", RepoTags: append([]string{ref}, more...)}
	contents := map[string][]byte{item.Config: b.blobs[b.config.Digest]}
	for _, data := range b.tars {
		name := digest.FromBytes(data).Encoded() + ".tar"
		contents[name] = data
		item.Layers = append(item.Layers, name)
	}
	if contents["manifest.json"], err = json.Marshal([]any{item}); err != nil {
		return "", err
	}
	for name, data := range contents {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return "", err
		}
	}
	return b.config.Digest.String(), tarDir(file, dir)
}

// WriteDir builds spec into the format of the dir: transport.
func WriteDir(dir string, spec Spec) (string, error) {
	b, err := build(spec)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	contents := map[string][]byte{
		"version":       []byte("Directory Transport Version: 1.1\n"),
		"manifest.json": b.blobs[b.manifest.Digest],
	}
	for d, data := range b.blobs {
		if d != b.manifest.Digest {
			contents[d.Encoded()] = data
		}
	}
	for name, data := range contents {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return "", err
		}
	}
	return b.manifest.Digest.String(), nil
}

func versioned() specs.Versioned { return specs.Versioned{SchemaVersion: 2} }

func writeBlobs(dir string, b *built) error {
	for d, data := range b.blobs {
		sub := filepath.Join(dir, d.Algorithm().String())
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(sub, d.Encoded()), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fullName is containerd's annotation for the full name of an image in a layout.
const fullName = "io.containerd.image.name"

// addToIndex adds desc to the index at file, with the tag or full name ref.
func addToIndex(file, ref string, desc v1.Descriptor) error {
	index := v1.Index{Versioned: versioned(), MediaType: v1.MediaTypeImageIndex}
	old, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(old, &index); err != nil {
			return fmt.Errorf("decoding %s: %w", file, err)
		}
	}
	index.Manifests = slices.DeleteFunc(index.Manifests, func(d v1.Descriptor) bool {
		return d.Annotations[v1.AnnotationRefName] == ref
	})
	desc.Annotations = map[string]string{v1.AnnotationRefName: ref}
	if strings.Contains(ref, "/") {
		desc.Annotations[fullName] = ref
	}
	index.Manifests = append(index.Manifests, desc)
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// tarDir packs the content of dir, without dir itself. The archive does not depend on the times and
// owners of the files.
func tarDir(file, dir string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(f)
	if err := errors.Join(addDir(tw, dir), tw.Close(), f.Close()); err != nil {
		return fmt.Errorf("packing %s: %w", file, err)
	}
	return nil
}

func addDir(tw *tar.Writer, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return writeEntry(tw, name, File{Dir: true})
		}
		return writeEntry(tw, name, File{Source: path, Mode: 0o644})
	})
}
