package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
)

// files mounts the App's own view of an archive's files, which belong to the App's user there. A
// directory of the node is used as it is.
func (f *attempt) files(ctx context.Context) (err error) {
	if f.user, err = f.findUser(); err != nil {
		return err
	}
	if f.tree.Digest == "" {
		f.dir = f.tree.Dir
		return nil
	}
	f.dir = f.e.appDir(f.Instance.UID)
	upper, work := filepath.Join(f.e.appUpper(f.Instance.UID), "upper"), filepath.Join(f.e.appUpper(f.Instance.UID), "work")
	for _, dir := range []string{f.dir, upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// With metacopy, a change of the owner copies no content. The content is copied when the App
	// first writes to the file (Documentation/filesystems/overlayfs.rst).
	options := "lowerdir=" + f.tree.Dir + ",upperdir=" + upper + ",workdir=" + work + ",metacopy=on"
	if err := unix.Mount("overlay", f.dir, "overlay", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		return &os.PathError{Op: "mount overlay", Path: f.dir, Err: err}
	}
	return giveAll(ctx, f.dir, f.user)
}

// giveAll makes a user the owner of a file tree, as if the user had unpacked it. It does not
// follow links.
func giveAll(ctx context.Context, dir string, to spec.User) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		return os.Lchown(path, int(to.UID), int(to.GID)) //nolint:gosec // no other process uses the files yet
	})
}

func (f *attempt) removeFiles(context.Context) error {
	if err := mounts.Unmount(f.e.appDir(f.Instance.UID)); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(f.e.appDir(f.Instance.UID)), os.RemoveAll(f.e.appUpper(f.Instance.UID)))
}

// findUser returns a user of the node, by name or number, or otherwise a user that only this
// instance has.
func (f *attempt) findUser() (spec.User, error) {
	if f.Container.User == "" {
		id := engine.UserOf(f.Supervisor.PID())
		return spec.User{UID: id, GID: id}, nil
	}
	u, err := spec.LookUp("/", f.Container.User)
	if err != nil {
		return u, fmt.Errorf("looking for the user on the node: %w", err)
	}
	if (u.UID == 0 || u.GID == 0 || slices.Contains(u.Groups, 0)) && !f.e.allowRoot {
		return u, errRoot
	}
	return u, nil
}
