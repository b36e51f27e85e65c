package fetch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"rik.dev/rik/internal/riklet/image/internal/layer"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// unpackArchive unpacks an archive that is not an image. After an error, the caller must remove
// the files.
func unpackArchive(ctx context.Context, a wire.Archive, limits wire.Limits, m *meter) (*wire.Unpacked, error) {
	if a.Form != wire.FormRoot && a.Form != wire.FormShared {
		return nil, fmt.Errorf("programmer error: form %q", a.Form)
	}
	budget, err := layer.NewBudget(limits, a.Dir)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(a.File)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	m.begin("", info.Size())
	r := bufio.NewReaderSize(m.file(file), readAhead)
	if head, _ := r.Peek(len(zipMagic)); bytes.Equal(head, zipMagic) {
		m.begin("", info.Size())
		return unpackZip(ctx, a, m.file(file), info.Size(), budget)
	}
	if err := knownCompression(r); err != nil {
		return nil, err
	}
	plain, done, _, err := decompress(r)
	if err != nil {
		return nil, err
	}
	defer done()
	content := bufio.NewReaderSize(plain, readAhead)
	if a.Form == wire.FormRoot && isExt4(content) {
		n, err := spoolImage(ctx, content, filepath.Join(a.Dir, wire.ImageFile), budget)
		return &wire.Unpacked{Image: true, Bytes: n, Entries: 1}, refuseDamage(err)
	}
	return intoTree(a, func(root string) (layer.Result, error) {
		return layer.ApplyTar(ctx, root, content, budget, a.Form)
	})
}

var zipMagic = []byte("PK\x03\x04")

func unpackZip(ctx context.Context, a wire.Archive, file io.ReaderAt, size int64, budget *layer.Budget) (*wire.Unpacked, error) {
	if a.Form != wire.FormShared {
		return nil, fmt.Errorf("%w: a zip archive has no owners and cannot be a root file system; use tar.gz, tar.zst or an ext4 image", wire.ErrRefused)
	}
	return intoTree(a, func(root string) (layer.Result, error) {
		return layer.ApplyZip(ctx, root, file, size, budget, a.Form)
	})
}

// intoTree creates the directory for the unpacked files of an archive.
func intoTree(a wire.Archive, apply func(root string) (layer.Result, error)) (*wire.Unpacked, error) {
	root := filepath.Join(a.Dir, wire.ContentDir)
	if err := os.Mkdir(root, 0o700); err != nil {
		return nil, layer.Classify(err)
	}
	// Set the mode independently of the umask. An entry for the root can change it.
	if err := os.Chmod(root, 0o755); err != nil {
		return nil, err
	}
	res, err := apply(root)
	if err != nil {
		return nil, refuseDamage(err)
	}
	if res.Entries == 0 {
		return nil, fmt.Errorf("%w: the archive is empty", wire.ErrRefused)
	}
	if err := inherit(&staged{dir: a.Dir, Result: res}, nil); err != nil {
		return nil, layer.Classify(err)
	}
	return &wire.Unpacked{Bytes: res.Bytes, Entries: res.Entries, Skipped: res.Skipped}, nil
}

// refuseDamage converts an error without a reason, if the system did not report it, to a
// refusal. Such an error comes from the readers of archives, compressions and JSON, so the
// content is malformed. An error of reading or writing a file may be temporary, and is returned
// unchanged.
func refuseDamage(err error) error {
	var errno syscall.Errno
	var pathErr *os.PathError
	switch {
	case err == nil, wire.FailureOf(err).Code != "":
	case errors.Is(err, errStoreGone), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case errors.As(err, &errno), errors.As(err, &pathErr):
	default:
		return fmt.Errorf("%w: %w", wire.ErrRefused, err)
	}
	return err
}

// knownCompression reports a compression that is not supported by its name, instead of reporting
// a broken tar archive.
func knownCompression(r *bufio.Reader) error {
	for magic, name := range map[string]string{"\xfd7zXZ\x00": "xz", "BZh": "bzip2", "7z\xbc\xaf\x27\x1c": "7-Zip", "Rar!": "RAR"} {
		if head, _ := r.Peek(len(magic)); string(head) == magic {
			return fmt.Errorf("%w: %s is not supported; use gzip or zstd", wire.ErrRefused, name)
		}
	}
	if head, _ := r.Peek(1); len(head) == 0 {
		return fmt.Errorf("%w: the file is empty", wire.ErrRefused)
	}
	return nil
}

// The offsets of the magic numbers of ext4 and tar:
// https://www.kernel.org/doc/html/latest/filesystems/ext4/globals.html#super-block
const (
	ext4MagicAt = 1024 + 0x38
	tarMagicAt  = 257
)

// isExt4 distinguishes an ext4 image from a tar archive, which may contain any bytes.
func isExt4(r *bufio.Reader) bool {
	head, _ := r.Peek(ext4MagicAt + 2)
	return len(head) == ext4MagicAt+2 && head[ext4MagicAt] == 0x53 && head[ext4MagicAt+1] == 0xef &&
		string(head[tarMagicAt:tarMagicAt+5]) != "ustar"
}

// spoolImage writes an image, with holes for blocks of zeros.
func spoolImage(ctx context.Context, from io.Reader, to string, budget *layer.Budget) (int64, error) {
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, layer.Classify(err)
	}
	n, err := copySparse(out, layer.WithContext(ctx, from), budget)
	return n, layer.Classify(errors.Join(err, out.Close()))
}

func copySparse(out *os.File, from io.Reader, budget *layer.Budget) (int64, error) {
	const piece = 64 << 10
	buf, zeros := make([]byte, piece), make([]byte, piece)
	var at int64
	for {
		n, err := fill(from, buf)
		if n > 0 {
			if err := budget.Take(int64(n)); err != nil {
				return at, err
			}
			if !bytes.Equal(buf[:n], zeros[:n]) {
				if _, err := out.WriteAt(buf[:n], at); err != nil {
					return at, err
				}
			}
			at += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return at, out.Truncate(at)
		}
		if err != nil {
			return at, err
		}
	}
}

// fill is like io.ReadFull, but distinguishes the end of the data from an unexpected end.
func fill(from io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = from.Read(buf[n:])
		n += m
	}
	return n, err
}
