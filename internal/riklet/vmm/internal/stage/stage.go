// Package stage makes the files of a microVM available to its VMM, which runs as a different
// user: it puts them into one directory that belongs to that user.
//
// A file is linked, or, if it is on another file system, bind-mounted. The VMM gets access to
// the file itself, but not to other files of its directory. If the VMM's user differs from the
// caller, links and mounts need root.
package stage

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/mounts"
)

// Owner is the user of a VMM.
type Owner struct{ UID, GID uint32 }

// self reports whether the calling process has that user already.
func (o Owner) self() bool { return int(o.UID) == os.Geteuid() }

// Directory creates a directory that only the owner can enter. It removes an existing one first,
// so that sockets of an earlier run are not confused with those of the next.
func Directory(path string, o Owner) error {
	if err := Remove(path); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return fmt.Errorf("creating the VMM's directory: %w", err)
	}
	return o.own(path)
}

// own changes the owner of a path, without following links.
func (o Owner) own(path string) error {
	if o.self() {
		return nil
	}
	if err := os.Lchown(path, int(o.UID), int(o.GID)); err != nil {
		return fmt.Errorf("setting the owner of %s to user %d: %w", path, o.UID, err)
	}
	return nil
}

// ReadOnly puts a file at target that the owner can read. The file must be readable for all,
// because it is shared and stays owned by root.
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

// Writable puts a file at target that only the owner can read and write. The owner also becomes
// the owner of the file.
func Writable(source, target string, o Owner) error {
	if err := place(source, target); err != nil {
		return err
	}
	if o.self() {
		return nil
	}
	// Use the source, because another process may already control target.
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

// Remove removes a directory that Directory created, with its content. It unmounts first, so
// that the mounted files are not removed. It may be repeated.
func Remove(dir string) error {
	if err := mounts.UnmountAndRemove(dir); err != nil {
		return fmt.Errorf("removing the VMM's directory: %w", err)
	}
	return nil
}
