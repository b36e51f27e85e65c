package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/fetch"
)

// Parameters of the ext4 file systems created here.
const (
	blockSize = 4096
	inodeSize = 256
	groupSize = 8 * blockSize // blocks that one block of bitmap covers
)

// measure is the space that a tree needs as an ext4 file system.
type measure struct {
	inodes, blocks int64
	bytes          int64 // of content, for the limit
	uid, gid       int   // of the root
	mode           fs.FileMode
	times          times
}

// measureTree walks a tree. The tree is not trusted but does not change. It stops at the limits,
// and opens no file.
func measureTree(ctx context.Context, root string, limits fetch.Limits) (measure, error) {
	var m measure
	linked := map[inode]bool{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.New("programmer error: a file without a stat")
		}
		if path == root {
			m.uid, m.gid, m.mode = int(st.Uid), int(st.Gid), info.Mode()
			m.times.root = st.Mtim
		}
		if m.hardLinked(info, st, linked) {
			return m.check(limits)
		}
		m.add(path, info, st)
		m.times.note(strings.TrimPrefix(path, root), st.Mtim)
		return m.check(limits)
	})
	if err != nil {
		return measure{}, fmt.Errorf("measuring the root file system: %w", err)
	}
	return m, nil
}

type inode struct{ dev, ino uint64 }

// hardLinked reports whether the file was counted under another name. The name itself needs only
// space in a directory; add has a generous estimate of that.
func (m *measure) hardLinked(info fs.FileInfo, st *syscall.Stat_t, seen map[inode]bool) bool {
	if info.IsDir() || st.Nlink < 2 {
		return false
	}
	id := inode{st.Dev, st.Ino}
	if seen[id] {
		m.blocks++
		return true
	}
	seen[id] = true
	return false
}

func (m *measure) add(path string, info fs.FileInfo, st *syscall.Stat_t) {
	m.inodes++
	switch {
	case info.Mode().IsRegular():
		// Holes stay holes.
		used := min(info.Size(), st.Blocks*512)
		m.bytes += used
		m.blocks += (used + blockSize - 1) / blockSize
		// One block of extents for each 340 pieces, because a sparse file has many.
		m.blocks += used / blockSize / 340
	case info.IsDir():
		// Twice the size of the names in the source, because ext4 leaves blocks half full.
		m.blocks += 1 + 2*(info.Size()+blockSize-1)/blockSize
	default:
		m.blocks++ // a long symbolic link
	}
	// Extended attributes that do not fit into the inode need a block.
	if n, err := unix.Llistxattr(path, nil); err == nil && n > 0 {
		m.blocks++
	}
}

func (m *measure) check(limits fetch.Limits) error {
	if m.bytes > limits.Bytes {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limits.Bytes)
	}
	if m.inodes > limits.Entries {
		return fmt.Errorf("%w: more than %d files", ErrTooLarge, limits.Entries)
	}
	return nil
}

// reservedInodes are ext4's own, and lost+found.
const reservedInodes = 16

// geometry returns the size of the file system. It is generous, which costs nothing because the
// file is sparse. Each further attempt is half as large again.
func (m *measure) geometry(attempt int) (inodes, bytes int64) {
	inodes = m.inodes + m.inodes/50 + reservedInodes
	blocks := m.blocks + m.blocks/20 + 512
	for range attempt {
		blocks += blocks / 2
	}
	blocks += inodes * inodeSize / blockSize
	groups := blocks/groupSize + 1
	// Two bitmaps, a rounded-up inode table and the copies of the descriptors.
	blocks += groups * 8
	return inodes + groups*inodeSize/16, blocks * blockSize
}
