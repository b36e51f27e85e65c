package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// MinWritable is the smallest writable disk: below, ext4 leaves hardly any room.
const MinWritable = 4 << 20

// Writable implements Store. The disk has no journal: it does not outlive its instance,
// and after a crash of the node starts empty. What it may take is its size.
func (d *Dir) Writable(ctx context.Context, path string, size int64) (err error) {
	size -= size % blockSize
	if !filepath.IsAbs(path) {
		return fmt.Errorf("making a writable disk: %q is not an absolute path", path)
	}
	if size < MinWritable || size > d.cfg.Limits.Bytes*16 {
		return fmt.Errorf("%w: a writable disk of %d bytes: it must have between %d and %d", ErrTooLarge, size, MinWritable, d.cfg.Limits.Bytes*16)
	}
	ctx, stop := context.WithTimeoutCause(ctx, d.cfg.Limits.Time, fmt.Errorf("%w: the limit is %s", errTime, d.cfg.Limits.Time))
	defer stop()
	// It is made beside and renamed, so that what has the name is whole.
	fresh := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	if err := removeIfThere(fresh); err != nil {
		return fmt.Errorf("making a writable disk: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(fresh))
		}
	}()
	// The tables are written when they are needed; a sparse file reads as zeros.
	err = d.mkfs(ctx, fresh, size, "-i", strconv.Itoa(bytesPerInode(size)), "-E", "lazy_itable_init=1,nodiscard", "-L", "rik-scratch")
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("making a writable disk: %w", err)
	}
	return nil
}

// bytesPerInode are those of Debian's mke2fs.conf: small disks have small files.
func bytesPerInode(size int64) int {
	if size < 512<<20 {
		return 4096
	}
	return 16384
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
