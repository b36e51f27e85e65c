package disk

import (
	"fmt"
	"strings"
	"syscall"
)

// mke2fs copies whole seconds of 32 bits. ext4 has room for more: 30 bits of nanoseconds and two
// more of the seconds, in a field beside (Documentation/filesystems/ext4/inodes.rst). debugfs
// writes that.

// timesMost bounds how many files get their exact time: debugfs looks each of them up by its
// path. The content of most images has whole seconds.
const timesMost = 50_000

// fileTime is the time of modification of a file of a tree.
type fileTime struct {
	path string // from the root, with a slash at its beginning
	at   syscall.Timespec
}

// times are those that mke2fs does not copy, and the root's, of which it copies none.
type times struct {
	root  syscall.Timespec
	files []fileTime
	lost  int // how many are not kept
}

// note remembers a time if mke2fs does not copy all of it.
func (t *times) note(path string, at syscall.Timespec) {
	if path == "" || extra(at) == 0 {
		return
	}
	if !quotable(path) || len(t.files) == timesMost {
		t.lost++
		return
	}
	t.files = append(t.files, fileTime{strings.Clone(path), at})
}

// extra is what ext4 has of a time beside its 32 bits of seconds.
func extra(at syscall.Timespec) uint32 {
	low := int64(int32(at.Sec))                                 //nolint:gosec // as ext4 stores it
	return uint32(at.Nsec)<<2 | uint32((at.Sec-low)>>32)&0b0011 //nolint:gosec // below 10^9, two bits
}

// lineMost is what debugfs reads of a line (BUFSIZ), with room for the command.
const lineMost = 8000

// quotable tells whether debugfs can be given a path: a line is a command.
func quotable(path string) bool {
	return !strings.ContainsAny(path, "\n\r\x00") && len(quote(path)) < lineMost
}

// quote writes a path as a word of debugfs.
func quote(path string) string { return `"` + strings.ReplaceAll(path, `"`, `""`) + `"` }

// script are the commands that give the files their times.
func (t *times) script() string {
	var out strings.Builder
	fmt.Fprintf(&out, "set_inode_field / mtime @%d\nset_inode_field / mtime_extra %d\n", uint32(t.root.Sec), extra(t.root)) //nolint:gosec // as ext4 stores it
	for _, f := range t.files {
		fmt.Fprintf(&out, "set_inode_field %s mtime_extra %d\n", quote(f.path), extra(f.at))
	}
	return out.String()
}
