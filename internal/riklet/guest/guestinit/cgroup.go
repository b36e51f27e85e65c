package guestinit

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
)

const (
	cgroupRoot       = "/sys/fs/cgroup"
	containersCgroup = cgroupRoot + "/containers"
	controllers      = "+cpu +memory +pids"
	cpuPeriod        = 100000 // microseconds, the kernel's default
)

// controlCgroups creates the cgroup of all containers and enables the controllers for limits.
func controlCgroups() error {
	if err := os.MkdirAll(containersCgroup, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{cgroupRoot, containersCgroup} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(controllers), 0); err != nil {
			return fmt.Errorf("limits need a kernel with the controllers %s: %w", controllers, err)
		}
	}
	return nil
}

// makeCgroup creates the cgroup of one run, with its limits.
func makeCgroup(dir string, p guest.Process) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("creating a cgroup: %w", err)
	}
	// A container is one unit: if it runs out of memory, all its processes are killed, as on the
	// node.
	set := map[string]string{"memory.oom.group": "1"}
	if p.MemoryBytes > 0 {
		set["memory.max"] = strconv.FormatInt(p.MemoryBytes, 10)
	}
	if p.PIDs > 0 {
		set["pids.max"] = strconv.FormatInt(p.PIDs, 10)
	}
	if p.MilliCPU > 0 {
		// The kernel refuses less than 1 ms per period.
		quota := max(p.MilliCPU*cpuPeriod/1000, 1000)
		set["cpu.max"] = fmt.Sprintf("%d %d", quota, cpuPeriod)
	}
	for file, value := range set {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			return fmt.Errorf("setting %s to %s: %w", file, value, err)
		}
	}
	return nil
}

// killCgroup kills all processes in a cgroup and below.
func killCgroup(dir string) {
	_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
}

const (
	cgroupRemovalTimeout  = 2 * time.Second
	cgroupRemovalInterval = 2 * time.Millisecond
)

// removeCgroup removes a cgroup once the killed processes are gone.
func removeCgroup(dir string) error {
	deadline := time.Now().Add(cgroupRemovalTimeout)
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(cgroupRemovalInterval)
	}
}

// oomKills returns the number of out-of-memory kills in a cgroup.
func oomKills(dir string) uint64 {
	n, _ := readField(filepath.Join(dir, "memory.events"), "oom_kill")
	return n
}

func cpuNanos(dir string) (uint64, error) {
	micros, err := readField(filepath.Join(dir, "cpu.stat"), "usage_usec")
	return micros * 1000, err
}

// machineMemory returns the memory that the machine uses and cannot reclaim.
func machineMemory() (uint64, error) {
	total, err := readField("/proc/meminfo", "MemTotal:")
	if err != nil {
		return 0, err
	}
	available, err := readField("/proc/meminfo", "MemAvailable:")
	if err != nil || available > total {
		return 0, err
	}
	return (total - available) * 1024, nil
}

// readField returns the number after a word at the beginning of a line.
func readField(path, word string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && fields[0] == word {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no line %q", path, word)
}

func readNumber(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}
