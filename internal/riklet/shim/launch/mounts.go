package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// arrangeMounts creates a mount namespace with the process's own view of the node's files, if
// Hide or Binds require one. It opens the sources first, because they may be in the directory
// that is hidden.
func arrangeMounts(p Process) error {
	if p.Hide == "" && len(p.Binds) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("creating a mount namespace: %w", err)
	}
	// Later mounts of the node appear here, but mounts made here do not appear on the node.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	trees := make([]int, len(p.Binds))
	for i, b := range p.Binds {
		fd, err := unix.OpenTree(unix.AT_FDCWD, b.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("opening %s, to mount it at %s: %w", b.Source, b.Target, err)
		}
		trees[i] = fd
	}
	if p.Hide != "" {
		if err := unix.Mount("tmpfs", p.Hide, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=64k"); err != nil {
			return fmt.Errorf("masking %s: %w", p.Hide, err)
		}
	}
	for i, b := range p.Binds {
		if err := place(trees[i], b, p.Hide); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", b.Source, b.Target, err)
		}
	}
	return nil
}

func place(tree int, b Bind, hide string) error {
	defer unix.Close(tree)
	if hide != "" && strings.HasPrefix(b.Target, hide+"/") {
		if err := makeTarget(tree, b.Target); err != nil {
			return err
		}
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, b.Target, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
}

// makeTarget creates a mount point of the same kind as the tree: a directory or a file.
func makeTarget(tree int, target string) error {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.MkdirAll(target, 0o755)
	}
	err := os.MkdirAll(filepath.Dir(target), 0o755)
	return errors.Join(err, os.WriteFile(target, nil, 0o644))
}
