package vmmtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/riklet/vmm"
)

// bad are machines that every driver must refuse, each by the change that makes it invalid.
var bad = map[string]func(*vmm.Machine){
	"no ID":                    func(m *vmm.Machine) { m.ID = "" },
	"ID that climbs":           func(m *vmm.Machine) { m.ID = "../../etc" },
	"ID of dots":               func(m *vmm.Machine) { m.ID = ".." },
	"ID with a slash":          func(m *vmm.Machine) { m.ID = "a/b" },
	"ID with a comma":          func(m *vmm.Machine) { m.ID = "a,debug-threads=on" },
	"ID like an option":        func(m *vmm.Machine) { m.ID = "-S" },
	"ID too long":              func(m *vmm.Machine) { m.ID = strings.Repeat("a", 65) },
	"ID with a line end":       func(m *vmm.Machine) { m.ID = "a\n" },
	"no directory":             func(m *vmm.Machine) { m.Dir = "" },
	"relative directory":       func(m *vmm.Machine) { m.Dir = "m" },
	"missing directory":        func(m *vmm.Machine) { m.Dir += "/missing" },
	"directory too long":       func(m *vmm.Machine) { m.Dir += "/" + strings.Repeat("a", 100) },
	"directory is a file":      func(m *vmm.Machine) { m.Dir = m.Disks[0].Path },
	"no kernel":                func(m *vmm.Machine) { m.Kernel = "" },
	"missing kernel":           func(m *vmm.Machine) { m.Kernel += ".missing" },
	"kernel is a directory":    func(m *vmm.Machine) { m.Kernel = m.Dir },
	"missing initramfs":        func(m *vmm.Machine) { m.Initramfs = m.Dir + "/missing" },
	"command line too long":    func(m *vmm.Machine) { m.CommandLine = strings.Repeat("a", 4096) },
	"command line of lines":    func(m *vmm.Machine) { m.CommandLine = "quiet\ninit=/bin/sh" },
	"command line with a NUL":  func(m *vmm.Machine) { m.CommandLine = "quiet\x00" },
	"no processors":            func(m *vmm.Machine) { m.VCPUs = 0 },
	"negative processors":      func(m *vmm.Machine) { m.VCPUs = -1 },
	"too many processors":      func(m *vmm.Machine) { m.VCPUs = 33 },
	"no memory":                func(m *vmm.Machine) { m.MemoryBytes = 0 },
	"too little memory":        func(m *vmm.Machine) { m.MemoryBytes = vmm.MinMemory - 1 },
	"negative memory":          func(m *vmm.Machine) { m.MemoryBytes = -1 },
	"too much memory":          func(m *vmm.Machine) { m.MemoryBytes = 1 << 62 },
	"root's user":              func(m *vmm.Machine) { m.UID = 0 },
	"root's group":             func(m *vmm.Machine) { m.GID = 0 },
	"disk without ID":          func(m *vmm.Machine) { m.Disks[0].ID = "" },
	"disk ID with a comma":     func(m *vmm.Machine) { m.Disks[0].ID = "a,b" },
	"disk ID with a slash":     func(m *vmm.Machine) { m.Disks[0].ID = "../a" },
	"disk ID too long":         func(m *vmm.Machine) { m.Disks[0].ID = strings.Repeat("a", 21) },
	"two disks of one ID":      func(m *vmm.Machine) { m.Disks[0].ID = m.Disks[1].ID },
	"missing disk":             func(m *vmm.Machine) { m.Disks[0].Path += ".missing" },
	"disk is a directory":      func(m *vmm.Machine) { m.Disks[0].Path = m.Dir },
	"disk is a device":         func(m *vmm.Machine) { m.Disks[0].Path = "/dev/zero" },
	"disk by a relative path":  func(m *vmm.Machine) { m.Disks[0].Path = "root.img" },
	"disk by an unclean path":  func(m *vmm.Machine) { m.Disks[0].Path = filepath.Dir(m.Disks[0].Path) + "/x/../root.img" },
	"negative disk limit":      func(m *vmm.Machine) { m.Disks[0].BytesPerSecond = -1 },
	"too many disks":           func(m *vmm.Machine) { m.Disks = many(m.Disks[0]) },
	"TAP with a slash":         func(m *vmm.Machine) { m.NICs[0].TAP = "a/b" },
	"TAP with a comma":         func(m *vmm.Machine) { m.NICs[0].TAP = "a,script=/x" },
	"TAP too long":             func(m *vmm.Machine) { m.NICs[0].TAP = strings.Repeat("a", 16) },
	"no MAC address":           func(m *vmm.Machine) { m.NICs[0].MAC = "" },
	"multicast MAC address":    func(m *vmm.Machine) { m.NICs[0].MAC = "01:00:5e:00:00:01" },
	"long MAC address":         func(m *vmm.Machine) { m.NICs[0].MAC = "02:00:5e:10:00:00:00:01" },
	"two interfaces alike":     func(m *vmm.Machine) { m.NICs = append(m.NICs, m.NICs[0]) },
	"tiny MTU":                 func(m *vmm.Machine) { m.NICs[0].MTU = 10 },
	"huge MTU":                 func(m *vmm.Machine) { m.NICs[0].MTU = 1 << 20 },
	"negative network limit":   func(m *vmm.Machine) { m.NICs[0].ReceiveBytesPerSecond = -1 },
	"relative cgroup":          func(m *vmm.Machine) { m.Cgroups = []string{"a/cgroup.procs"} },
	"cgroup that is no cgroup": func(m *vmm.Machine) { m.Cgroups = []string{"/etc/passwd"} },
	"missing snapshot":         func(m *vmm.Machine) { m.Restore = m.Dir + "/missing" },
	"empty snapshot":           func(m *vmm.Machine) { m.Restore = m.Dir },
}

func many(d vmm.Disk) []vmm.Disk {
	var all []vmm.Disk
	for i := range 40 {
		d.ID = "disk-" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		all = append(all, d)
	}
	return all
}

func (s *suite) validate(t *testing.T) {
	m := s.machine(t)
	m.NICs = []vmm.NIC{{TAP: "tap0", MAC: "02:00:00:00:00:01", MTU: 1450}}
	if err := s.Driver.Validate(m); err != nil {
		t.Fatalf("Validate() of a good machine = %v", err)
	}
	for name, change := range bad {
		t.Run(name, func(t *testing.T) {
			m := m
			m.Disks = append([]vmm.Disk(nil), m.Disks...)
			m.NICs = append([]vmm.NIC(nil), m.NICs...)
			change(&m)
			if err := s.Driver.Validate(m); !errors.Is(err, vmm.ErrInvalid) {
				t.Errorf("Validate() = %v, want ErrInvalid", err)
			}
			if _, err := s.Driver.Prepare(s.context(t), m); err == nil {
				t.Error("Prepare() took the machine")
			}
		})
	}
	m.ID, m.VCPUs = "/", 0
	if err := s.Driver.Validate(m); err == nil || !strings.Contains(err.Error(), "vCPU") || !strings.Contains(err.Error(), "ID") {
		t.Errorf("Validate() = %v, want every problem named", err)
	}
	if left := entries(t, m.Dir); len(left) > 0 {
		t.Errorf("machines that were refused left %v", left)
	}
}

// prepare checks that a machine can be prepared again, and the process that Prepare returns.
func (s *suite) prepare(t *testing.T) {
	m := s.machine(t)
	first, err := s.Driver.Prepare(s.context(t), m)
	if err != nil {
		t.Fatalf("Prepare() = %v", err)
	}
	second, err := s.Driver.Prepare(s.context(t), m)
	if err != nil {
		t.Fatalf("Prepare() again = %v, want the same as the first", err)
	}
	if strings.Join(first.Argv, "\n") != strings.Join(second.Argv, "\n") {
		t.Errorf("Prepare() again asks for %v, before for %v", second.Argv, first.Argv)
	}
	if !filepath.IsAbs(first.Argv[0]) {
		t.Errorf("Prepare() asks for %q: a program by its path cannot be mistaken", first.Argv[0])
	}
	if !first.Root && (first.UID != m.UID || first.GID != m.GID) {
		t.Errorf("Prepare() has user %d and group %d, want the machine's, %d and %d", first.UID, first.GID, m.UID, m.GID)
	}
	for _, e := range first.Env {
		for _, own := range os.Environ() {
			if e == own && !strings.HasPrefix(e, "PATH=") {
				t.Errorf("Prepare() passes %q of the agent's environment on", e)
			}
		}
	}
	s.reportsUnreadableFile(t)
}

// reportsUnreadableFile checks that a file that the VMM's user cannot read is refused before the
// VMM starts, with the file's name.
func (s *suite) reportsUnreadableFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("not root: the VMM reads what the test reads")
		return
	}
	m := s.machine(t)
	if err := os.Chmod(m.Disks[0].Path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Driver.Prepare(s.context(t), m); err == nil || !strings.Contains(err.Error(), m.Disks[0].Path) {
		t.Errorf("Prepare() with a disk that the VMM cannot read = %v, want an error with its path", err)
	}
	if left := entries(t, m.Dir); len(left) > 0 {
		t.Errorf("Prepare() failed and left %v", left)
	}
}
