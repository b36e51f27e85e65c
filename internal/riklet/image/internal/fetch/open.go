package fetch

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"rik.dev/rik/internal/riklet/image/internal/layer"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// containerdName is the annotation with the full name of an image in the archives of containerd
// and Docker. Their reference name is only the tag.
const containerdName = "io.containerd.image.name"

// maxPacked limits the images of an archive.
const maxPacked = 1000

// openFile finds the images in an archive. The content decides about the format. An archive that
// is both, as docker save writes it, is read as an OCI layout.
func openFile(ctx context.Context, req wire.Request, m *meter) (*wire.Opened, error) {
	budget, err := layer.NewBudget(req.Limits, req.TempDir)
	if err != nil {
		return nil, err
	}
	file, temporary := req.Open.File, false
	if file == "" {
		file, temporary = filepath.Join(req.TempDir, "stream"), true
		if err := spoolStream(ctx, file, budget, m); err != nil {
			return nil, err
		}
	}
	docker, layout, err := formatOf(ctx, file, budget, m)
	switch {
	case err != nil:
		return nil, refuseDamage(reason(err))
	case layout:
		dir := filepath.Join(req.TempDir, "layout")
		if err := unpackLayout(ctx, file, dir, budget, m); err != nil {
			return nil, refuseDamage(reason(err))
		}
		if temporary { // the layout has all of it
			if err := os.Remove(file); err != nil {
				return nil, err
			}
		}
		return openedLayout(dir)
	case docker != nil:
		plain, err := plainArchive(ctx, file, req.TempDir, budget, m)
		if err != nil {
			return nil, refuseDamage(reason(err))
		}
		return openedDocker(plain, docker)
	}
	return nil, fmt.Errorf("%w: it is neither an OCI layout nor a docker archive: it has no index.json and no manifest.json", wire.ErrRefused)
}

// spoolStream writes the archive that this process receives to a file.
func spoolStream(ctx context.Context, file string, budget *layer.Budget, m *meter) error {
	in := os.NewFile(wire.StreamFile, "archive")
	defer func() { _ = in.Close() }()
	// A read from the pipe does not see the end of ctx.
	defer context.AfterFunc(ctx, func() { _ = in.Close() })()
	m.begin("receiving the archive", 0)
	out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return layer.Classify(err)
	}
	_, err = io.Copy(io.MultiWriter(out, m.writer()), budget.SpooledReader(ctx, in))
	return layer.Classify(errors.Join(err, out.Close()))
}

// formatOf looks for the documents of both formats. It reads all of the archive, because nothing
// defines their order.
func formatOf(ctx context.Context, file string, budget *layer.Budget, m *meter) (docker []byte, layout bool, err error) {
	f, size, err := openRegular(file)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }()
	m.begin(readingArchive, size)
	buffered := bufio.NewReaderSize(m.file(f), readAhead)
	if err := knownCompression(buffered); err != nil {
		return nil, false, err
	}
	plain, closePlain, _, err := decompress(buffered)
	if err != nil {
		return nil, false, err
	}
	defer closePlain()
	tr := tar.NewReader(budget.Reader(ctx, plain))
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return docker, layout, nil
		}
		if err != nil {
			return nil, false, refuseDamage(err)
		}
		switch name := path.Clean(hdr.Name); {
		case hdr.Typeflag != tar.TypeReg:
		case name == v1.ImageIndexFile:
			layout = true
		case name == "manifest.json" && docker == nil:
			if docker, err = readAtMost(tr); err != nil {
				return nil, false, err
			}
		}
	}
}

// openedLayout lists the images of an OCI layout.
func openedLayout(dir string) (*wire.Opened, error) {
	data, err := readDocument(filepath.Join(dir, v1.ImageIndexFile))
	if err != nil {
		return nil, refuseDamage(err)
	}
	var index v1.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", wire.ErrRefused, v1.ImageIndexFile, err)
	}
	out := &wire.Opened{Transport: "oci"}
	for i, d := range index.Manifests {
		// Signatures and other objects have other types.
		if d.MediaType != "" && !slices.Contains(manifestTypes, d.MediaType) || d.ArtifactType != "" {
			continue
		}
		p := wire.Packed{Target: dir + ":@" + strconv.Itoa(i), Tag: d.Annotations[v1.AnnotationRefName]}
		if name := d.Annotations[containerdName]; name != "" {
			p.Names = []string{name}
		}
		out.Images = append(out.Images, p)
	}
	return out, checkPacked(out)
}

// openedDocker lists the images of a docker archive.
func openedDocker(file string, document []byte) (*wire.Opened, error) {
	var entries []struct{ RepoTags []string }
	if err := json.Unmarshal(document, &entries); err != nil {
		return nil, fmt.Errorf("%w: manifest.json: %w", wire.ErrRefused, err)
	}
	out := &wire.Opened{Transport: "docker-archive"}
	for i, e := range entries {
		out.Images = append(out.Images, wire.Packed{Target: file + ":@" + strconv.Itoa(i), Names: e.RepoTags})
	}
	return out, checkPacked(out)
}

func checkPacked(o *wire.Opened) error {
	if n := len(o.Images); n == 0 || n > maxPacked {
		return fmt.Errorf("%w: the archive has %d images, and 1 to %d are allowed", wire.ErrRefused, n, maxPacked)
	}
	return nil
}
