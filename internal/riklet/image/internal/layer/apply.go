// Package layer unpacks one layer of an image into a new directory, in the format that overlayfs
// stacks. The archive is not trusted. umoci's extractor confines its writes to the directory.
// Before umoci processes an entry, this package refuses every entry that tries to leave the
// directory, and limits the size, number and kind of entries.
package layer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/umoci/oci/layer"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// Result describes an unpacked layer.
type Result struct {
	Bytes    int64
	Entries  int64
	Skipped  []string // the first few device nodes that were left out
	Implicit []string // directories that the archive implies but does not list, sorted
	// Whiteouts has one whiteout for each directory with whiteouts, and for each directory that
	// hides the lower layers. Their meaning depends on the layers below.
	Whiteouts map[string]string
}

// skippedNames limits Result.Skipped, which is for a log line.
const skippedNames = 8

// Apply unpacks the tar archive in stream into root, an empty directory. It reads stream to its
// end, so that a caller can hash all of it. An error names the entry. After an error, the caller
// must remove the content of root.
func Apply(ctx context.Context, root string, stream io.Reader, budget *Budget) (Result, error) {
	u := &unpacker{
		root:      root,
		budget:    budget,
		validate:  newValidator(root),
		extractor: layer.NewTarExtractor(options()),
	}
	return u.tar(ctx, stream)
}

func (u *unpacker) tar(ctx context.Context, stream io.Reader) (Result, error) {
	in := u.budget.Reader(ctx, stream)
	tr := tar.NewReader(in)
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Result{}, Classify(fmt.Errorf("reading the archive after entry %d: %w", u.result.Entries, err))
		}
		name := hdr.Name // the extractor cleans it in place
		if err := u.entry(hdr, tr); err != nil {
			return Result{}, Classify(fmt.Errorf("entry %q: %w", shorten(name), err))
		}
	}
	// The tar reader stops at the end marker; padding may follow.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return Result{}, Classify(fmt.Errorf("reading the data after the archive: %w", err))
	}
	u.result.Implicit, u.result.Whiteouts = u.validate.implicit(), u.validate.hiding()
	return u.result, nil
}

type unpacker struct {
	root      string
	budget    *Budget
	validate  *validator
	extractor *layer.TarExtractor
	result    Result
	// prepare changes an accepted entry, or says to skip it. It is nil for layers of images,
	// which are unpacked without changes.
	prepare func(hdr *tar.Header) (skip bool)
}

func (u *unpacker) entry(hdr *tar.Header, content io.Reader) error {
	if err := u.budget.takeEntry(); err != nil {
		return err
	}
	u.result.Entries++
	action, err := u.validate.check(hdr)
	if err != nil {
		return err
	}
	if action == unpack && u.prepare != nil && u.prepare(hdr) {
		action = skipDevice
	}
	switch action {
	case ignore:
		return nil
	case skipDevice:
		if len(u.result.Skipped) < skippedNames {
			u.result.Skipped = append(u.result.Skipped, shorten(hdr.Name))
		}
		return nil
	}
	// hdr.Size is the size on the disk. In the archive a sparse file is smaller; the extractor
	// writes its holes.
	if err := u.budget.takeBytes(hdr.Size); err != nil {
		return err
	}
	u.result.Bytes += hdr.Size
	if err := u.extractor.UnpackEntry(u.root, hdr, content); err != nil {
		return u.refusalOf(hdr, err)
	}
	if action == unpackOpaque {
		// The extractor lets the directory replace the whiteout. Without the opaque mark the
		// hidden files would reappear.
		return u.extractor.UnpackEntry(u.root, &tar.Header{Name: path.Join(hdr.Name, whiteoutOpaque)}, nil) //nolint:gosec // the extractor confines the path
	}
	return nil
}

// entryErrors are system errors that show that the entry is invalid: paths through files, and
// sizes and names over the system's limits. Other errors, above all of the disk, may be
// temporary.
var entryErrors = []error{
	syscall.ENOTDIR, syscall.EISDIR, syscall.EEXIST, syscall.ENOTEMPTY, syscall.ELOOP, syscall.EMLINK, syscall.EINVAL, syscall.ERANGE, syscall.E2BIG,
}

// refusalOf converts the error to a refusal if the entry is the cause.
func (u *unpacker) refusalOf(hdr *tar.Header, err error) error {
	if name := u.badAttribute(hdr, err); name != "" {
		return refuse("the extended attribute %q cannot be set: %w", shorten(name), err)
	}
	for _, bad := range entryErrors {
		if errors.Is(err, bad) {
			return refuse("%w", err)
		}
	}
	return err
}

// badAttribute finds the attribute that the system refuses, because the extractor's error does
// not name it. It is the one for which setting it again returns the same error. If the error is
// a lack of space but the file system has space, the attribute is the cause. File systems such
// as ext4 have one block for the attributes of a file.
func (u *unpacker) badAttribute(hdr *tar.Header, err error) string {
	attributes := hdr.Xattrs //nolint:staticcheck // what the extractor reads
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		var errno syscall.Errno
		again := unix.Lsetxattr(filepath.Join(u.root, hdr.Name), name, []byte(attributes[name]), 0) //nolint:gosec // the extractor has just made the path
		if !errors.As(again, &errno) || !errors.Is(err, errno) {
			continue
		}
		switch errno {
		case unix.EINVAL, unix.ERANGE, unix.E2BIG, unix.EPERM:
			return name
		case unix.ENOSPC:
			if u.budget.spacious() {
				return name
			}
		}
	}
	return ""
}

// options selects overlayfs's format of whiteouts. Without root, which happens only in tests,
// ownership is stored in an extended attribute, and the whiteouts of directories in user
// attributes.
func options() *layer.UnpackOptions {
	return &layer.UnpackOptions{OnDiskFormat: layer.OverlayfsRootfs{UserXattr: os.Geteuid() != 0, MapOptions: mapping()}}
}

func mapping() layer.MapOptions {
	uid := os.Geteuid()
	if uid == 0 {
		return layer.MapOptions{}
	}
	return layer.MapOptions{
		Rootless:    true,
		UIDMappings: []rspec.LinuxIDMapping{{HostID: uint32(uid), Size: 1}},
		GIDMappings: []rspec.LinuxIDMapping{{HostID: uint32(os.Getegid()), Size: 1}},
	}
}

// Classify adds the reason to errors of the file system and of archives.
func Classify(err error) error {
	switch {
	case errors.Is(err, wire.ErrRefused):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", wire.ErrNoSpace, err)
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", wire.ErrRefused, err)
	}
	return err
}

// shorten limits the length of an entry's name for errors and statuses.
func shorten(name string) string {
	const limit = 200
	return excerpt.Of(name, limit)
}
