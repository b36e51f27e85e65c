package vmm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	// MaxVCPUs is Firecracker's limit; qemu's microvm would allow more.
	MaxVCPUs = 32
	// MaxMemory is more than any node has, and small enough not to overflow.
	MaxMemory = 1 << 40
	// MaxDisks and MaxNICs keep every VMM within its number of interrupts (Firecracker has 19).
	MaxDisks = 12
	// MaxNICs has the same reason as MaxDisks.
	MaxNICs = 2
	// MaxCommandLine leaves room for a driver's own parameters within the 2048 bytes that an x86
	// kernel accepts.
	MaxCommandLine = 1500
	// MaxDir leaves room for the name of a driver's socket: sun_path has 108 bytes with its NUL.
	MaxDir = 80
)

var (
	idPattern   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,62}$`)
	diskPattern = regexp.MustCompile(`^[a-z0-9-]{1,20}$`)
	tapPattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)
)

// Validate reports every problem that a machine has with any VMM, as ErrInvalid. It checks the
// files of the machine, and changes nothing.
func (m Machine) Validate() error {
	var p problems
	if !idPattern.MatchString(m.ID) {
		p.add("the ID %q is not 1 to 63 letters, digits and hyphens", m.ID)
	}
	m.validateDir(&p)
	m.validateKernel(&p)
	if m.VCPUs < 1 || m.VCPUs > MaxVCPUs {
		p.add("%d vCPUs: a machine needs 1 to %d", m.VCPUs, MaxVCPUs)
	}
	if m.MemoryBytes < MinMemory || m.MemoryBytes > MaxMemory {
		p.add("%d bytes of memory: a machine needs %d to %d", m.MemoryBytes, int64(MinMemory), int64(MaxMemory))
	}
	if m.UID == 0 || m.GID == 0 {
		p.add("the VMM would run as user %d and group %d: it must have its own, not root's", m.UID, m.GID)
	}
	m.validateDisks(&p)
	m.validateNICs(&p)
	if m.Restore != "" {
		p.directory("the snapshot", m.Restore)
	}
	return p.err()
}

func (m Machine) validateDir(p *problems) {
	if len(m.Dir) > MaxDir {
		p.add("the directory %q is longer than %d bytes, so the paths of sockets in it are too long", m.Dir, MaxDir)
	}
	p.directory("the directory", m.Dir)
	for _, c := range m.Cgroups {
		if !clean(c) || filepath.Base(c) != "cgroup.procs" {
			p.add("the cgroup %q is not an absolute path of a cgroup.procs file", c)
		}
	}
}

func (m Machine) validateKernel(p *problems) {
	p.file("the kernel", m.Kernel)
	if m.Initramfs != "" {
		p.file("the initramfs", m.Initramfs)
	}
	if len(m.CommandLine) > MaxCommandLine {
		p.add("the kernel command line has %d bytes, and the limit is %d", len(m.CommandLine), MaxCommandLine)
	}
	if strings.ContainsFunc(m.CommandLine, func(r rune) bool { return r < ' ' || r > '~' }) {
		p.add("the kernel command line has characters other than printable ASCII")
	}
}

func (m Machine) validateDisks(p *problems) {
	if len(m.Disks) > MaxDisks {
		p.add("%d disks, and the limit is %d", len(m.Disks), MaxDisks)
	}
	seen := map[string]bool{}
	for i, d := range m.Disks {
		if !diskPattern.MatchString(d.ID) {
			p.add("the ID %q of disk %d is not 1 to 20 lower-case letters, digits and hyphens", d.ID, i)
		}
		if seen[d.ID] {
			p.add("two disks have the same ID %q", d.ID)
		}
		seen[d.ID] = true
		p.file(fmt.Sprintf("disk %q", d.ID), d.Path)
		if d.BytesPerSecond < 0 || d.OperationsPerSecond < 0 {
			p.add("disk %q has a negative limit", d.ID)
		}
	}
}

func (m Machine) validateNICs(p *problems) {
	if len(m.NICs) > MaxNICs {
		p.add("%d network interfaces, and the limit is %d", len(m.NICs), MaxNICs)
	}
	seen := map[string]bool{}
	for i, n := range m.NICs {
		if !tapPattern.MatchString(n.TAP) {
			p.add("the TAP %q of interface %d is not a name of a network device", n.TAP, i)
		}
		mac, err := net.ParseMAC(n.MAC)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
			p.add("the address %q of interface %d is not a unicast MAC address", n.MAC, i)
		}
		if seen[n.TAP] || seen[mac.String()] {
			p.add("interface %d has the TAP or the address of another", i)
		}
		seen[n.TAP], seen[mac.String()] = true, true
		// 68 is the minimum in IPv4 (RFC 791); virtio has 16 bits.
		if n.MTU != 0 && (n.MTU < 68 || n.MTU > 65535) {
			p.add("the MTU %d of interface %d is not 68 to 65535", n.MTU, i)
		}
		if n.ReceiveBytesPerSecond < 0 || n.TransmitBytesPerSecond < 0 {
			p.add("interface %d has a negative limit", i)
		}
	}
}

// problems collects errors, so that a user sees all of them at once.
type problems []error

func (p *problems) add(format string, args ...any) {
	*p = append(*p, fmt.Errorf(format, args...))
}

func (p *problems) err() error {
	if len(*p) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrInvalid, errors.Join(*p...))
}

// file requires a regular file at an absolute path.
func (p *problems) file(what, path string) {
	if !clean(path) {
		p.add("%s: %q is not a clean absolute path", what, path)
		return
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		p.add("%s: %w", what, err)
	case !info.Mode().IsRegular():
		p.add("%s: %s is not a regular file", what, path)
	case info.Size() == 0:
		p.add("%s: %s is empty", what, path)
	}
}

func (p *problems) directory(what, path string) {
	if !clean(path) {
		p.add("%s: %q is not a clean absolute path", what, path)
		return
	}
	if info, err := os.Stat(path); err != nil {
		p.add("%s: %w", what, err)
	} else if !info.IsDir() {
		p.add("%s: %s is not a directory", what, path)
	}
}

func clean(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !strings.ContainsAny(path, "\x00\n")
}
