package rikcluster

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// leftovers returns what a removed cluster must not leave: mounts below its directory, processes
// with a path of it, and cgroups of its node.
func (c *Cluster) leftovers() []error {
	var errs []error
	for _, m := range Mounts(c.Dir) {
		errs = append(errs, fmt.Errorf("mount %s", m))
	}
	for pid, line := range Processes(c.Dir) {
		errs = append(errs, fmt.Errorf("process %d: %s", pid, line))
	}
	for _, cgroup := range Cgroups(filepath.Base(c.Dir)) {
		errs = append(errs, fmt.Errorf("cgroup %s", cgroup))
	}
	return errs
}

// Mounts returns the mount points at or below a directory.
func Mounts(dir string) []string {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var points []string
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			points = append(points, fields[4])
		}
	}
	return points
}

// Processes returns the processes whose command line contains the directory, by PID, without
// this process.
func Processes(dir string) map[int]string {
	found := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return found
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue // it has ended in the meantime
		}
		line := strings.ReplaceAll(string(raw), "\x00", " ")
		if strings.Contains(line, dir) {
			found[pid] = line
		}
	}
	return found
}

// Cgroups returns the cgroup directories whose path contains a word, such as an instance's UID.
func Cgroups(word string) []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it went away while we walked
		}
		if d.IsDir() && strings.Contains(d.Name(), word) {
			found = append(found, path)
		}
		return nil
	})
	return found
}
