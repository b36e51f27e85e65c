package layer

import (
	"archive/tar"
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"

	"github.com/opencontainers/umoci/oci/layer"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// newPlain returns an unpacker for archives that are not layers: there are no layers below.
func newPlain(root string, budget *Budget, form wire.Form) *unpacker {
	u := &unpacker{
		root:      root,
		budget:    budget,
		validate:  newValidator(root),
		extractor: layer.NewTarExtractor(&layer.UnpackOptions{OnDiskFormat: layer.DirRootfs{MapOptions: mapping()}}),
	}
	u.validate.plain = true
	if form == wire.FormShared {
		u.prepare = applyPlainEntry
	}
	return u
}

// ApplyTar is Apply for a tar archive that is not a layer.
func ApplyTar(ctx context.Context, root string, stream io.Reader, budget *Budget, form wire.Form) (Result, error) {
	return newPlain(root, budget, form).tar(ctx, stream)
}

// applyPlainEntry makes a file owned by root and readable by all users, without further
// permissions. It skips entries other than files, directories and links.
func applyPlainEntry(hdr *tar.Header) (skip bool) {
	if hdr.Typeflag == tar.TypeFifo {
		return true
	}
	hdr.Uid, hdr.Gid, hdr.Uname, hdr.Gname = 0, 0, "", ""
	// This also removes attributes: capabilities are like set-user-ID bits.
	hdr.PAXRecords = nil
	hdr.Xattrs = nil //nolint:staticcheck // what the extractor reads
	mode := hdr.Mode&0o755 | 0o444
	if mode&0o111 != 0 || hdr.Typeflag == tar.TypeDir {
		mode |= 0o111
	}
	if hdr.Typeflag == tar.TypeDir {
		mode |= 0o200
	}
	hdr.Mode = mode
	return false
}

// ApplyZip is Apply for a zip archive of size bytes.
func ApplyZip(ctx context.Context, root string, file io.ReaderAt, size int64, budget *Budget, form wire.Form) (Result, error) {
	u := newPlain(root, budget, form)
	// The reader holds the whole directory of the archive in memory, whatever size the archive
	// declares.
	directory := &directoryReader{file: file, left: directoryBytes}
	zr, err := zip.NewReader(directory, size)
	if err != nil {
		if directory.left < 0 {
			err = fmt.Errorf("%w: the zip archive's directory has more than %d bytes", wire.ErrTooLarge, int64(directoryBytes))
		}
		return Result{}, classifyZip(fmt.Errorf("reading the zip archive: %w", err))
	}
	directory.left = math.MaxInt64
	for _, f := range zr.File {
		if err := u.zipEntry(ctx, f); err != nil {
			return Result{}, Classify(fmt.Errorf("entry %q: %w", shorten(f.Name), classifyZip(err)))
		}
	}
	u.result.Implicit = u.validate.implicit()
	return u.result, nil
}

// directoryBytes limits how much the reader may read of a zip archive's directory: 1,000,000
// entries have 46 bytes each and a name.
const directoryBytes = 256 << 20

type directoryReader struct {
	file io.ReaderAt
	left int64
}

var errDirectory = errors.New("the directory is too large")

func (d *directoryReader) ReadAt(p []byte, off int64) (int, error) {
	if d.left < 0 {
		return 0, errDirectory
	}
	n, err := d.file.ReadAt(p, off)
	d.left -= int64(n)
	return n, err
}

// zipEntry converts an entry to one of a tar archive, because all checks are written for those.
func (u *unpacker) zipEntry(ctx context.Context, f *zip.File) error {
	if f.Flags&1 != 0 {
		return refuse("it is encrypted")
	}
	if f.UncompressedSize64 > math.MaxInt64/2 {
		return refuse("its size is out of range")
	}
	content, err := f.Open()
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	in := u.budget.Reader(ctx, content)
	var link string
	if f.Mode()&fs.ModeSymlink != 0 {
		if link, err = linkTarget(in); err != nil {
			return err
		}
	}
	hdr, err := tar.FileInfoHeader(f.FileInfo(), link)
	if err != nil {
		return refuse("files of this type are not supported")
	}
	hdr.Name = f.Name
	if hdr.Typeflag != tar.TypeReg {
		hdr.Size = 0
		return u.entry(hdr, in)
	}
	hdr.Size = int64(f.UncompressedSize64)
	if err := u.entry(hdr, io.LimitReader(in, hdr.Size)); err != nil {
		return err
	}
	// Reading to the end of the content verifies its checksum.
	n, err := io.Copy(io.Discard, io.LimitReader(in, 1))
	if err == nil && n > 0 {
		err = refuse("it has more bytes than its header says")
	}
	return err
}

// linkTarget reads the target of a symbolic link, which is its content.
func linkTarget(r io.Reader) (string, error) {
	const most = 4095 // PATH_MAX without the NUL
	target, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return "", err
	}
	if len(target) > most || len(target) == 0 {
		return "", refuse("the symbolic link's target is empty or too long")
	}
	return string(target), nil
}

func classifyZip(err error) error {
	for _, bad := range []error{zip.ErrFormat, zip.ErrAlgorithm, zip.ErrChecksum, zip.ErrInsecurePath} {
		if errors.Is(err, bad) {
			return fmt.Errorf("%w: %w", wire.ErrRefused, err)
		}
	}
	return err
}
