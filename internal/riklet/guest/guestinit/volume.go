package guestinit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/projected"
)

const (
	volumeDir      = runDir + "/volumes"
	containerDir   = scratchDir + "/containers"
	scratchVolumes = scratchDir + "/volumes"
)

func volumePath(name string) (string, error) {
	return filepath.Join(volumeDir, name), validName("volume", name)
}

// makeVolume creates a volume's directory where containers can mount it.
func makeVolume(v guest.Volume) error {
	dir, err := volumePath(v.Name)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	if v.Memory || v.Projected || len(v.Files) > 0 {
		options := "mode=0777"
		if v.SizeBytes > 0 {
			options += fmt.Sprintf(",size=%d", v.SizeBytes)
		}
		if v.Projected || len(v.Files) > 0 {
			options = "mode=0755"
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
			return fmt.Errorf("mounting a file system in memory: %w", err)
		}
		if v.Projected || len(v.Files) > 0 {
			return publish(dir, v.Files)
		}
		return nil
	}
	onDisk := filepath.Join(scratchVolumes, v.Name)
	switch err := os.Mkdir(onDisk, 0o777); {
	case errors.Is(err, fs.ErrExist): // of an earlier boot: its owner may have changed the mode
	case err != nil:
		return err
	default:
		if err := os.Chmod(onDisk, 0o777); err != nil {
			return err
		}
	}
	return unix.Mount(onDisk, dir, "", unix.MS_BIND, "")
}

// publish makes a directory show exactly these files.
func publish(dir string, files []guest.File) error {
	all := make([]projected.File, len(files))
	for i, f := range files {
		all[i] = projected.File{Path: f.Path, Mode: fs.FileMode(f.Mode), Data: f.Data}
	}
	return projected.Publish(dir, all)
}
