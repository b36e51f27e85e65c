package guestinit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
)

const (
	imageDir   = runDir + "/images"
	scratchDir = runDir + "/scratch"
	// diskTimeout is the timeout for a disk to appear.
	diskTimeout  = 2 * time.Second
	diskInterval = 5 * time.Millisecond
)

// findDisk finds a disk's device. It waits until the device appears.
func findDisk(d guest.Disk) (string, error) {
	deadline := time.Now().Add(diskTimeout)
	for {
		device, err := lookForDisk(d, "/sys/block")
		if err == nil || time.Now().After(deadline) {
			return device, err
		}
		time.Sleep(diskInterval)
	}
}

// lookForDisk searches once: by serial number, or by position if no disk has a serial number.
func lookForDisk(d guest.Disk, sys string) (string, error) {
	disks, err := filepath.Glob(filepath.Join(sys, "vd*"))
	if err != nil {
		return "", err
	}
	// vdaa comes after vdz.
	sort.Slice(disks, func(i, j int) bool {
		if len(disks[i]) != len(disks[j]) {
			return len(disks[i]) < len(disks[j])
		}
		return disks[i] < disks[j]
	})
	serials := 0
	for _, disk := range disks {
		serial, err := os.ReadFile(filepath.Join(disk, "serial"))
		text := strings.TrimRight(string(serial), "\x00\n ")
		if err != nil || text == "" {
			continue
		}
		serials++
		if text == d.ID {
			return filepath.Join("/dev", filepath.Base(disk)), nil
		}
	}
	if serials == 0 && d.Index >= 0 && d.Index < len(disks) {
		return filepath.Join("/dev", filepath.Base(disks[d.Index])), nil
	}
	return "", fmt.Errorf("this machine has no disk %q among its %d", d.ID, len(disks))
}

// mountScratch mounts the file system for volumes and the writable layers of containers: the
// disk with this ID, or memory if the ID is empty. A disk that an earlier boot used keeps its
// volumes; the kernel replays its journal. ErrDisk means that the disk exists but its file
// system cannot be used.
func mountScratch(id string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	if id == "" {
		if err := unix.Mount("tmpfs", scratchDir, "tmpfs", flags, "mode=0700"); err != nil {
			return fmt.Errorf("creating a file system in memory: %w", err)
		}
		return scratchDirs()
	}
	device, err := findScratch(id)
	if err != nil {
		return err
	}
	// discard: the node gets the blocks of deleted files back. errors=remount-ro: writes to a
	// damaged disk fail instead of spreading the damage.
	if err := unix.Mount(device, scratchDir, "ext4", flags, "discard,errors=remount-ro"); err != nil {
		return fmt.Errorf("%w: mounting disk %q: %w", guest.ErrDisk, id, err)
	}
	if err := scratchDirs(); err != nil {
		return fmt.Errorf("%w: %w", guest.ErrDisk, err)
	}
	return nil
}

// scratchDirs creates the directories of the scratch file system. It removes the writable layers
// of an earlier boot: each container starts from its image, and only volumes stay.
func scratchDirs() error {
	if err := os.RemoveAll(containerDir); err != nil {
		return fmt.Errorf("removing old container layers: %w", err)
	}
	return errors.Join(os.MkdirAll(containerDir, 0o700), os.MkdirAll(scratchVolumes, 0o700))
}

// findScratch finds the writable disk. Without serial numbers it is the only disk that is not
// read-only, because images are.
func findScratch(id string) (string, error) {
	device, err := findDisk(guest.Disk{ID: id, Index: -1})
	if err == nil {
		return device, nil
	}
	writable, _ := filepath.Glob("/sys/block/vd*/ro")
	for _, file := range writable {
		if n, failed := readNumber(file); failed == nil && n == 0 {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(file))), nil
		}
	}
	return "", err
}

// mountImage mounts an image read-only. Containers with the same image share the mount.
func (k *Kernel) mountImage(d guest.Disk) (string, error) {
	device, err := findDisk(d)
	if err != nil {
		return "", err
	}
	if dir, ok := k.images[device]; ok {
		return dir, nil
	}
	dir := filepath.Join(imageDir, filepath.Base(device))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// noload: on a read-only disk the journal cannot be replayed.
	if err := unix.Mount(device, dir, "ext4", unix.MS_RDONLY|unix.MS_NODEV, "noload"); err != nil {
		return "", fmt.Errorf("mounting the image of disk %q, which must be ext4: %w", d.ID, err)
	}
	k.images[device] = dir
	return dir, nil
}
