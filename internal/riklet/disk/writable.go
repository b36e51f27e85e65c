package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// MinWritable is the smallest writable disk in bytes. mke2fs refuses a journal that is larger
// than half of the free blocks, and the smallest journal has 4 MiB.
const MinWritable = 16 << 20

// Writable implements Store. The file system has a journal, so that it is consistent after
// its machine or its node crashed. The journal is part of size.
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
	err = d.mkfs(ctx, fresh, size, "-O", "has_journal", "-J", "size="+strconv.Itoa(journalMiB(size)),
		"-i", strconv.Itoa(bytesPerInode(size)), "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-L", "rik-scratch")
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("making a writable disk: %w", err)
	}
	return nil
}

// journalMiB is the size of the journal. 4 MiB is the smallest that mke2fs makes with 4 KiB
// blocks (1024 of them); 16 MiB is what it gives a disk of 512 MiB by default.
func journalMiB(size int64) int {
	if size < 512<<20 {
		return 4
	}
	return 16
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
