// Command initramfs writes the initramfs of microVMs. It has the init and the kernel modules for
// the devices, in the order in which the init loads them.
//
// usage: initramfs -init FILE -modules lib/modules/VERSION/kernel -out FILE
package main

import (
	"bufio"
	"bytes"
	"debug/elf"
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

// modules lists the modules that the devices of a microVM need. A kernel can have some of them
// built in, and then has no file for them. The modules that they depend on are added before them.
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
	initFile := flag.String("init", "", "program that becomes /init")
	dir := flag.String("modules", "", "directory kernel of the kernel's modules; empty if the kernel has all modules built in")
	out := flag.String("out", "", "file to write")
	flag.Parse()
	if err := pack(*initFile, *dir, *out); err != nil {
		fmt.Fprintln(os.Stderr, "initramfs:", err)
		os.Exit(1)
	}
}

func pack(initFile, dir, out string) error {
	// Write to another file and rename it, so that no guest boots an incomplete archive.
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
	paths, err := sorted(dir, modules)
	if err != nil {
		return err
	}
	var order []string
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		a.add("modules/"+filepath.Base(path), 0o644, unsigned(content))
		order = append(order, filepath.Base(path))
	}
	a.add("modules/order", 0o644, []byte(strings.Join(order, "\n")+"\n"))
	return a.close()
}

// sorted returns the files of the existing modules, each after those that it depends on. The
// dependencies differ between kernels: virtio.ko depends on virtio_ring.ko since Debian's 6.1.192.
func sorted(dir string, modules []string) ([]string, error) {
	if dir == "" {
		return nil, nil
	}
	files := map[string]string{} // by module name, as in dependencies
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && filepath.Ext(path) == ".ko" {
			files[called(path)] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var order []string
	done := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		path, there := files[name]
		if done[name] || !there {
			return nil
		}
		done[name] = true // before its dependencies, so that a cycle ends
		needs, err := needs(path)
		if err != nil {
			return err
		}
		for _, other := range needs {
			if err := visit(other); err != nil {
				return err
			}
		}
		order = append(order, path)
		return nil
	}
	for _, m := range modules {
		if err := visit(called(m)); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// called returns the name of a module. Its file can have dashes in place of underscores.
func called(path string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".ko"), "-", "_")
}

// needs returns the names of the modules on which a module depends. The file of the module has
// them: see modinfo(8).
func needs(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the module %s: %w", path, err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, nil
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("reading the metadata of the module %s: %w", path, err)
	}
	for entry := range strings.SplitSeq(string(info), "\x00") {
		if list, found := strings.CutPrefix(entry, "depends="); found && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

const (
	// signed is the end of a signed module. Before it is a header of headerLength bytes, and before
	// that the signature. The last four bytes of the header are the length of the signature: see
	// include/linux/module_signature.h of the kernel.
	signed       = "~Module signature appended~\n"
	headerLength = 12
)

// unsigned returns a module without its signature. An emulated machine needs 10 ms to verify a
// signature. It would prove nothing, because a user who can change the archive can also change the
// init.
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

// archive writes cpio's format "newc", which the kernel reads:
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

// pad writes zeros up to a multiple of four.
func (a *archive) pad(written int) {
	a.print("%s", strings.Repeat("\x00", (4-written%4)%4))
}

func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, 0, 0, nil)
	return a.err
}
