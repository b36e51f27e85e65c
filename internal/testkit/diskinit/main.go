// Command diskinit is the init of a virtual machine of tests. It loads the modules of the initramfs that
// hack/initramfs wrote, mounts the first disk, and starts the init of that disk.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// disk is the device with the root file system. The kernel finds it some time after the modules have
// been loaded.
const (
	disk        = "/dev/vda"
	diskTimeout = 30 * time.Second
)

func main() {
	err := enter()
	if err == nil {
		err = unix.Exec("/sbin/init", append([]string{"/sbin/init"}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "diskinit:", err)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// enter makes the disk the root directory.
func enter() error {
	if err := load(); err != nil {
		return err
	}
	if err := unix.Mount("dev", "/dev", "devtmpfs", 0, ""); err != nil {
		return fmt.Errorf("mounting /dev: %w", err)
	}
	if err := os.MkdirAll("/disk", 0o755); err != nil {
		return err
	}
	var err error
	for end := time.Now().Add(diskTimeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = unix.Mount(disk, "/disk", "ext4", 0, ""); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("mounting %s: %w", disk, err)
	}
	if err := unix.Mount("/dev", "/disk/dev", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving /dev: %w", err)
	}
	if err := os.Chdir("/disk"); err != nil {
		return err
	}
	// The root of an initramfs cannot be unmounted, so the disk is moved over it.
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the disk: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

// load loads the modules in the order that hack/initramfs wrote.
func load() error {
	order, err := os.ReadFile("/modules/order")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(order)) {
		content, err := os.ReadFile("/modules/" + name)
		if err != nil {
			return err
		}
		if err := unix.InitModule(content, ""); err != nil {
			return fmt.Errorf("loading %s: %w", name, err)
		}
	}
	return nil
}
