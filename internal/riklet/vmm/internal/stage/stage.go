// Package stage brings the files of a microVM to where its VMM, which runs as a user of
// its own, can open them: into one directory that belongs to that user.
//
// A file is linked, or, where it lies on another file system, bind-mounted: the VMM gets
// the file itself and nothing else of the directories that it lies in. Links and mounts
// need root as soon as the VMM's user is another than the caller.
package stage

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/mounts"
)

// Owner is the user that a VMM runs as.
type Owner struct{ UID, GID uint32 }

// self says whether the calling process is that user already.
func (o Owner) self() bool { return int(o.UID) == os.Geteuid() }

// Directory makes a directory that only the owner enters. What is in it is removed, so
// that sockets of an earlier run are not taken for those of the next.
func Directory(path string, o Owner) error {
	if err := Remove(path); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return fmt.Errorf("making the VMM's directory: %w", err)
	}
	return o.own(path)
}

// own hands a path over, without following it.
func (o Owner) own(path string) error {
	if o.self() {
		return nil
	}
	if err := os.Lchown(path, int(o.UID), int(o.GID)); err != nil {
		return fmt.Errorf("giving %s to user %d: %w", path, o.UID, err)
	}
	return nil
}

// ReadOnly puts a file at target that the owner can read. Everybody else's right to read
// is what lets it: the file is shared and stays root's.
func ReadOnly(source, target string, o Owner) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !o.self() && info.Mode().Perm()&0o004 == 0 {
		return fmt.Errorf("%s has mode %v: user %d of the VMM cannot read it; make the file readable for all (its directory may stay closed)", source, info.Mode().Perm(), o.UID)
	}
	return place(source, target)
}

// Writable puts a file at target that the owner alone can read and write: the file
// becomes its own.
func Writable(source, target string, o Owner) error {
	if err := place(source, target); err != nil {
		return err
	}
	if o.self() {
		return nil
	}
	// Through the source: target may already be out of our hands.
	if err := os.Chmod(source, 0o600); err != nil {
		return err
	}
	return o.own(source)
}

func place(source, target string) error {
	err := os.Link(source, target)
	if err == nil || !errors.Is(err, unix.EXDEV) {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s at %s, which is on another file system: %w", source, target, err)
	}
	return nil
}

// Remove takes a directory made by Directory away with all that is in it: mounts are
// detached first, so that nothing of what was mounted is removed. Twice is once.
func Remove(dir string) error {
	if err := mounts.UnmountAndRemove(dir); err != nil {
		return fmt.Errorf("removing the VMM's directory: %w", err)
	}
	return nil
}
