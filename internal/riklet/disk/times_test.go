package disk

import (
	"strings"
	"syscall"
	"testing"
)

// A file name in a hostile image must never become a command of debugfs.
func TestNamesAreNotCommands(t *testing.T) {
	t.Parallel()
	var m times
	at := syscall.Timespec{Sec: 1, Nsec: 2}
	for _, path := range []string{"/a\nrm /b", "/a\rrm /b", "/" + strings.Repeat(`"`, maxLine)} {
		m.note(path, at)
	}
	m.note(`/a" b`, at)
	m.note("/whole", syscall.Timespec{Sec: 1})
	want := "set_inode_field / mtime @0\nset_inode_field / mtime_extra 0\nset_inode_field \"/a\"\" b\" mtime_extra 8\n"
	if got := m.script(); got != want || m.lost != 3 {
		t.Errorf("%d are lost, the script is %q, want 3 and %q", m.lost, got, want)
	}
	for range maxTimes + 5 {
		m.note("/many", at)
	}
	if len(m.files) != maxTimes || m.lost != 3+6 {
		t.Errorf("%d files have their times, %d are lost", len(m.files), m.lost)
	}
}
