package fetch

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"rik.dev/rik/internal/riklet/image/internal/layer"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// layoutFile matches the files of an oci-archive that are read.
var layoutFile = regexp.MustCompile(`^(oci-layout|index\.json|blobs/[a-z0-9]{1,16}/[0-9a-f]{32,128})$`)

// readingArchive is the step of reading an archive before its layers.
const readingArchive = "reading the archive"

// unpackLayout unpacks the OCI layout in the archive at file into dir.
func unpackLayout(ctx context.Context, file, dir string, budget *layer.Budget, m *meter) error {
	f, size, err := openRegular(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	m.begin(readingArchive, size)
	plain, closePlain, _, err := decompress(bufio.NewReaderSize(m.file(f), readAhead))
	if err != nil {
		return err
	}
	defer closePlain()
	return spoolLayout(tar.NewReader(layer.WithContext(ctx, plain)), dir, budget)
}

func spoolLayout(tr *tar.Reader, dir string, budget *layer.Budget) error {
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return refuseDamage(err)
		}
		name := path.Clean(hdr.Name)
		if hdr.Typeflag != tar.TypeReg || !layoutFile.MatchString(name) {
			continue
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		err = copyFile(to, tr, hdr.Size, budget)
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: the archive contains it twice", wire.ErrRefused)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// plainArchive returns the path of an uncompressed docker-archive: file itself, or a copy below
// tempDir. It also copies a file whose name contains a colon, which separates the image in a
// reference.
func plainArchive(ctx context.Context, file, tempDir string, budget *layer.Budget, m *meter) (string, error) {
	f, size, err := openRegular(file)
	if err != nil {
		return file, err
	}
	defer func() { _ = f.Close() }()
	m.begin(readingArchive, size)
	plain, closePlain, compressed, err := decompress(bufio.NewReaderSize(m.file(f), readAhead))
	if err != nil || !compressed && !strings.Contains(file, ":") {
		return file, err
	}
	defer closePlain()
	to := filepath.Join(tempDir, "archive.tar")
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return file, err
	}
	_, err = io.Copy(out, budget.SpooledReader(ctx, plain))
	return to, layer.Classify(errors.Join(err, out.Close()))
}

// copyFile writes size bytes into a new file, after it has charged them to the budget.
func copyFile(to string, from io.Reader, size int64, budget *layer.Budget) error {
	if err := budget.Spool(size); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(out, from, size)
	return layer.Classify(errors.Join(err, out.Close()))
}

// readAhead is large enough to detect compressions and to save system calls.
const readAhead = 64 << 10

// zstdWindow limits the memory that a zstd frame can require. "zstd --ultra -22 --long=27", the
// largest window that the tools accept by default, needs all of it.
const zstdWindow = 128 << 20

// decompress detects the compression from the first bytes of r. It does not trust media types,
// because a Docker archive's manifest says gzip for plain layers.
func decompress(r *bufio.Reader) (plain io.Reader, done func(), compressed bool, err error) {
	magic, err := r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, false, err
	}
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, false, fmt.Errorf("%w: %w", wire.ErrRefused, err)
		}
		return z, func() { _ = z.Close() }, true, nil
	case len(magic) == 4 && string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return nil, nil, false, fmt.Errorf("%w: %w", wire.ErrRefused, err)
		}
		return z, z.Close, true, nil
	}
	return r, func() {}, false, nil
}
