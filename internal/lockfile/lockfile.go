// Package lockfile locks files and directories against other processes, with flock(2). The
// kernel releases a lock when its process ends, also after a crash.
package lockfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// HeldError reports that another process has the lock.
type HeldError struct {
	// By names the holder, such as "process 17 (riklet)" or "another process".
	By string
}

func (e *HeldError) Error() string { return "it is in use by " + e.By }

// Lock is a held lock. It ends with Release or with the process.
type Lock struct{ file *os.File }

// Take locks a directory, or a file that it creates if necessary. It does not wait: the error is
// a *HeldError if another process has the lock.
func Take(path string) (*Lock, error) {
	for {
		f, err := open(path)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = &HeldError{By: holder(f)}
			} else {
				err = &fs.PathError{Op: "flock", Path: path, Err: err}
			}
			return nil, errors.Join(err, f.Close())
		}
		if current(f, path) {
			return &Lock{f}, nil
		}
		// The file was removed between open and lock, so the path now leads to another file.
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// Release releases the lock. The file stays. If it were removed, two processes could lock two
// files with the same name.
func (l *Lock) Release() error {
	// Closing the file is not enough, because a child that is starting has the file open for a
	// moment, and with it the lock.
	return errors.Join(unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
}

// HeldBy returns the process that has the lock on a file or directory, in the form of
// [HeldError.By]. It is empty if none has it, or if the file does not exist. HeldBy does not take
// the lock, not even for a moment.
func HeldBy(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Fstat(int(f.Fd()), &st) != nil || holderIn(string(locks), unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino) == 0 {
		return ""
	}
	return holder(f)
}

func open(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return os.Open(path)
	}
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
}

// current reports whether a path still leads to an open file. If it cannot be checked, the
// result is true, because there is no better file to lock.
func current(f *os.File, path string) bool {
	has, err := f.Stat()
	if err != nil {
		return true
	}
	is, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist) && (err != nil || os.SameFile(has, is))
}

// holder names the process that has a lock on a file. It reads /proc/locks, so the result is
// correct also for a process that was killed and for older riklets.
func holder(f *os.File) string {
	const unknown = "another process"
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return unknown
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return unknown
	}
	pid := holderIn(string(locks), unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	if pid <= 0 { // the process is in another PID namespace
		return unknown
	}
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, bytes.TrimSpace(name))
}

// holderIn finds the process in the lines of proc_locks(5), such as "1: FLOCK ADVISORY WRITE
// 2483 fe:00:802914 0 EOF". The result is 0 if no line matches. On some file systems, such as
// overlayfs and btrfs, stat(2) returns another device number than the one in this file.
func holderIn(locks string, major, minor uint32, inode uint64) int {
	exact, loose := fmt.Sprintf("%02x:%02x:%d", major, minor, inode), fmt.Sprintf(":%d", inode)
	found := 0
	for line := range strings.Lines(locks) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" {
			continue
		}
		pid, err := strconv.Atoi(fields[4])
		switch {
		case err != nil:
		case fields[5] == exact:
			return pid
		case strings.HasSuffix(fields[5], loose):
			found = pid
		}
	}
	return found
}
