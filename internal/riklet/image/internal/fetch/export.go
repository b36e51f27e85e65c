package fetch

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"

	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"rik.dev/rik/internal/riklet/image/internal/layer"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// export writes an image as an OCI layout in a tar archive. The store has only unpacked layers, so
// the archive has the same files and settings as the pulled image, and other digests. Two exports
// of an image are the same. It returns the size of the archive.
func export(ctx context.Context, req wire.Request, to io.Writer, m *meter) (int64, error) {
	budget, err := layer.NewBudget(req.Limits, req.TempDir)
	if err != nil {
		return 0, err
	}
	counted := &countingWriter{to: to}
	x := &exporter{req: req, out: tar.NewWriter(counted), budget: budget, meter: m, written: map[digest.Digest]bool{}}
	if err := x.write(ctx); err != nil {
		return 0, layer.Classify(err)
	}
	return counted.n, nil
}

type exporter struct {
	req     wire.Request
	out     *tar.Writer
	budget  *layer.Budget
	meter   *meter
	written map[digest.Digest]bool // blobs in the archive
}

func (x *exporter) write(ctx context.Context) error {
	e := x.req.Export
	total, err := x.size()
	if err != nil {
		return err
	}
	x.meter.begin("packing layers", total)
	config := v1.Image{Platform: v1.Platform{Architecture: e.Architecture, OS: "linux"}, Config: e.Config, RootFS: v1.RootFS{Type: "layers"}}
	if config.Architecture == "" {
		config.Architecture = runtime.GOARCH
	}
	image := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	for i, chain := range e.Chain {
		blob, diff, err := x.layer(ctx, chain)
		if err != nil {
			return fmt.Errorf("layer %d of %d: %w", i+1, len(e.Chain), err)
		}
		image.Layers, config.RootFS.DiffIDs = append(image.Layers, blob), append(config.RootFS.DiffIDs, diff)
	}
	if image.Config, err = x.document(v1.MediaTypeImageConfig, config); err != nil {
		return err
	}
	top, err := x.document(v1.MediaTypeImageManifest, image)
	if err != nil {
		return err
	}
	if e.Reference != "" {
		top.Annotations = map[string]string{v1.AnnotationRefName: e.Reference, containerdName: e.Reference}
	}
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{top}}
	if err := x.plainDocument(v1.ImageIndexFile, index); err != nil {
		return err
	}
	if err := x.plainDocument(v1.ImageLayoutFile, v1.ImageLayout{Version: v1.ImageLayoutVersion}); err != nil {
		return err
	}
	return x.out.Close()
}

// size returns the size of the unpacked layers.
func (x *exporter) size() (total int64, err error) {
	for _, chain := range x.req.Export.Chain {
		name, err := wire.LayerDir(chain)
		if err != nil {
			return 0, err
		}
		data, err := os.ReadFile(filepath.Join(x.req.LayersDir, name, wire.StoredFile))
		if err != nil {
			return 0, err
		}
		var stored wire.Stored
		if err := json.Unmarshal(data, &stored); err != nil {
			return 0, fmt.Errorf("record of a stored layer: %w", err)
		}
		total += stored.Bytes
	}
	return total, nil
}

// layer adds one layer. Its digest is part of its name in the archive, so it is packed into a
// temporary file first.
func (x *exporter) layer(ctx context.Context, chain digest.Digest) (v1.Descriptor, digest.Digest, error) {
	name, err := wire.LayerDir(chain)
	if err != nil {
		return v1.Descriptor{}, "", err
	}
	file, err := os.CreateTemp(x.req.TempDir, "layer-")
	if err != nil {
		return v1.Descriptor{}, "", err
	}
	defer func() {
		_ = file.Close()
		_ = os.Remove(file.Name())
	}()
	packed, plain := digest.Canonical.Digester(), digest.Canonical.Digester()
	z := gzip.NewWriter(io.MultiWriter(x.budget.SpoolingWriter(file), packed.Hash()))
	err = layer.Pack(ctx, filepath.Join(x.req.LayersDir, name, wire.ContentDir), io.MultiWriter(z, plain.Hash(), x.meter.writer()))
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return v1.Descriptor{}, "", err
	}
	size, err := file.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return v1.Descriptor{}, "", err
	}
	blob := v1.Descriptor{MediaType: v1.MediaTypeImageLayerGzip, Digest: packed.Digest(), Size: size}
	return blob, plain.Digest(), x.blob(blob, file)
}

// document adds a JSON document.
func (x *exporter) document(mediaType string, value any) (v1.Descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return v1.Descriptor{}, err
	}
	d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return d, x.blob(d, bytes.NewReader(data))
}

// plainDocument adds a JSON document under a name of the layout.
func (x *exporter) plainDocument(name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return x.file(name, int64(len(data)), bytes.NewReader(data))
}

// blob adds a blob, unless the archive has it: layers can be equal.
func (x *exporter) blob(d v1.Descriptor, content io.Reader) error {
	if x.written[d.Digest] {
		return nil
	}
	x.written[d.Digest] = true
	return x.file(path.Join(v1.ImageBlobsDir, d.Digest.Algorithm().String(), d.Digest.Encoded()), d.Size, content)
}

func (x *exporter) file(name string, size int64, content io.Reader) error {
	if err := x.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := io.Copy(x.out, content)
	return err
}

type countingWriter struct {
	to io.Writer
	n  int64
}

// Write implements io.Writer.
func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	w.n += int64(n)
	return n, err
}
