package disk

import (
	"fmt"
	"strings"
	"syscall"
)

// mke2fs copies only seconds in 32 bits. ext4 can store more: 30 bits of nanoseconds and two
// more bits of the seconds, in a separate field (Documentation/filesystems/ext4/inodes.rst).
// debugfs writes that field.

// maxTimes is the maximum number of files that get their exact time, because debugfs looks up
// each of them by its path. The files of most images have whole seconds.
const maxTimes = 50_000

// fileTime is the modification time of a file of a tree.
type fileTime struct {
	path string // from the root, with a leading slash
	at   syscall.Timespec
}

// times are those that mke2fs does not copy: of files, and of the root.
type times struct {
	root  syscall.Timespec
	files []fileTime
	lost  int // how many are not kept
}

// note stores a time if mke2fs does not copy all of it.
func (t *times) note(path string, at syscall.Timespec) {
	if path == "" || extra(at) == 0 {
		return
	}
	if !quotable(path) || len(t.files) == maxTimes {
		t.lost++
		return
	}
	t.files = append(t.files, fileTime{strings.Clone(path), at})
}

// extra returns the value of ext4's additional field, which extends the 32 bits of seconds.
func extra(at syscall.Timespec) uint32 {
	low := int64(int32(at.Sec))
	return uint32(at.Nsec)<<2 | uint32((at.Sec-low)>>32)&0b0011
}

// maxLine is the length of a line that debugfs reads (BUFSIZ), with room for the command.
const maxLine = 8000

// quotable reports whether a path can be an argument of debugfs. Each line of its input is a
// command.
func quotable(path string) bool {
	return !strings.ContainsAny(path, "\n\r\x00") && len(quote(path)) < maxLine
}

// quote quotes a path for debugfs.
func quote(path string) string { return `"` + strings.ReplaceAll(path, `"`, `""`) + `"` }

// script returns the commands that set the files' times.
func (t *times) script() string {
	var out strings.Builder
	fmt.Fprintf(&out, "set_inode_field / mtime @%d\nset_inode_field / mtime_extra %d\n", uint32(t.root.Sec), extra(t.root))
	for _, f := range t.files {
		fmt.Fprintf(&out, "set_inode_field %s mtime_extra %d\n", quote(f.path), extra(f.at))
	}
	return out.String()
}
