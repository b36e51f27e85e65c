// Command initramfs packs what a microVM boots from: the init, and the modules that
// its kernel needs for its devices, in the order in which they are loaded.
//
// usage: initramfs -init FILE -modules lib/modules/VERSION/kernel -out FILE
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// modules in the order of their needs. One that a kernel has built in is not there.
var modules = []string{
	"drivers/virtio/virtio.ko",
	"drivers/virtio/virtio_ring.ko",
	"drivers/virtio/virtio_mmio.ko",
	"drivers/virtio/virtio_pci_modern_dev.ko",
	"drivers/virtio/virtio_pci_legacy_dev.ko",
	"drivers/virtio/virtio_pci.ko",
	"drivers/char/virtio_console.ko",
	"drivers/block/virtio_blk.ko",
	"net/core/failover.ko",
	"drivers/net/net_failover.ko",
	"drivers/net/virtio_net.ko",
	"drivers/char/hw_random/virtio-rng.ko",
	"drivers/virtio/virtio_balloon.ko",
	"fs/overlayfs/overlay.ko",
	"net/vmw_vsock/vsock.ko",
	"net/vmw_vsock/vmw_vsock_virtio_transport_common.ko",
	"net/vmw_vsock/vmw_vsock_virtio_transport.ko",
}

func main() {
	initFile := flag.String("init", "", "the program that becomes /init")
	dir := flag.String("modules", "", "the kernel's modules, up to and with the directory kernel; none: all is built in")
	out := flag.String("out", "", "the file to write")
	flag.Parse()
	if err := pack(*initFile, *dir, *out); err != nil {
		fmt.Fprintln(os.Stderr, "initramfs:", err)
		os.Exit(1)
	}
}

func pack(initFile, dir, out string) error {
	// Written beside and renamed: a half archive must never be booted.
	f, err := os.CreateTemp(filepath.Dir(out), ".initramfs-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	w := bufio.NewWriterSize(f, 1<<20)
	if err := write(&archive{w: w}, initFile, dir); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(w.Flush(), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), out)
}

func write(a *archive, initFile, dir string) error {
	program, err := os.ReadFile(initFile)
	if err != nil {
		return err
	}
	a.add("dev", fs.ModeDir|0o755, nil)
	a.device("dev/console", 5, 1)
	a.add("init", 0o755, program)
	a.add("modules", fs.ModeDir|0o755, nil)
	var order []string
	for _, m := range modules {
		content, err := os.ReadFile(filepath.Join(dir, m))
		if errors.Is(err, fs.ErrNotExist) || dir == "" {
			continue
		}
		if err != nil {
			return err
		}
		a.add("modules/"+filepath.Base(m), 0o644, unsigned(content))
		order = append(order, filepath.Base(m))
	}
	a.add("modules/order", 0o644, []byte(strings.Join(order, "\n")+"\n"))
	return a.close()
}

const (
	// signed is what a signed module ends with, after a header of so many bytes, of which
	// the last four are the length of the signature before it: the kernel's
	// include/linux/module_signature.h.
	signed       = "~Module signature appended~\n"
	headerLength = 12
)

// unsigned is a module without its signature. An emulated machine takes a hundredth of a
// second to verify one, and it would prove nothing: who can change the archive can change
// the init.
func unsigned(module []byte) []byte {
	rest, found := bytes.CutSuffix(module, []byte(signed))
	if !found || len(rest) < headerLength {
		return module
	}
	length := int64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	if rest = rest[:len(rest)-headerLength]; length > int64(len(rest)) {
		return module
	}
	return rest[:int64(len(rest))-length]
}

// archive writes cpio's "newc" form, which is the kernel's:
// https://docs.kernel.org/driver-api/early-userspace/buffer-format.html
type archive struct {
	w     io.Writer
	inode int
	err   error
}

const (
	typeDir    = 0o040000
	typeFile   = 0o100000
	typeDevice = 0o020000
)

func (a *archive) add(name string, mode fs.FileMode, content []byte) {
	kind := typeFile
	if mode.IsDir() {
		kind = typeDir
	}
	a.entry(name, kind|int(mode.Perm()), 0, 0, content)
}

func (a *archive) device(name string, major, minor int) {
	a.entry(name, typeDevice|0o600, major, minor, nil)
}

func (a *archive) entry(name string, mode, major, minor int, content []byte) {
	a.inode++
	a.print("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0, name)
	const header = 110
	a.pad(header + len(name) + 1)
	if a.err == nil {
		_, a.err = a.w.Write(content)
	}
	a.pad(len(content))
}

func (a *archive) print(format string, args ...any) {
	if a.err == nil {
		_, a.err = fmt.Fprintf(a.w, format, args...)
	}
}

// pad fills up to a multiple of four.
func (a *archive) pad(written int) {
	a.print("%s", strings.Repeat("\x00", (4-written%4)%4))
}

func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, 0, 0, nil)
	return a.err
}
