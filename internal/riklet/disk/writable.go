package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// MinWritable is the minimum size of a writable disk in bytes. mke2fs refuses a journal that is
// larger than half of the free blocks, and the smallest journal has 4 MiB.
const MinWritable = 16 << 20

// Writable implements Store. The file system has a journal, so that it is consistent after a
// crash of its machine or its node. The journal is part of size.
func (d *Dir) Writable(ctx context.Context, path string, size int64) (err error) {
	size -= size % blockSize
	if !filepath.IsAbs(path) {
		return fmt.Errorf("creating a writable disk: %q is not an absolute path", path)
	}
	if size < MinWritable || size > d.cfg.Limits.Bytes*16 {
		return fmt.Errorf("%w: a writable disk of %d bytes: it must have %d to %d", ErrTooLarge, size, MinWritable, d.cfg.Limits.Bytes*16)
	}
	ctx, stop := context.WithTimeoutCause(ctx, d.cfg.Limits.Time, fmt.Errorf("%w: the limit is %s", errTime, d.cfg.Limits.Time))
	defer stop()
	// The disk is created under another name and renamed, so that the file at path is always
	// complete.
	fresh := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	if err := removeIfThere(fresh); err != nil {
		return fmt.Errorf("creating a writable disk: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(fresh))
		}
	}()
	// The tables are initialized when they are needed; a sparse file reads as zeros.
	err = d.mkfs(ctx, fresh, size, "-O", "has_journal", "-J", "size="+strconv.Itoa(journalMiB(size)),
		"-i", strconv.Itoa(bytesPerInode(size)), "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-L", "rik-scratch")
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("creating a writable disk: %w", err)
	}
	return nil
}

// journalMiB returns the size of the journal. 4 MiB is the minimum of mke2fs with 4 KiB blocks
// (1024 of them). 16 MiB is its default for a disk of 512 MiB.
func journalMiB(size int64) int {
	if size < 512<<20 {
		return 4
	}
	return 16
}

// bytesPerInode returns the values of Debian's mke2fs.conf: small disks have small files.
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
