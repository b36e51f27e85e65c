package rikcluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Inside is a process of an instance, seen from outside.
type Inside struct {
	PID   int
	Start uint64 // in clock ticks since boot; with the PID it identifies a process uniquely
}

// String returns the name of the process for messages.
func (i Inside) String() string { return fmt.Sprintf("%d (started at tick %d)", i.PID, i.Start) }

var uidInPath = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// InstanceProcesses returns the processes of a program in the cgroups of this cluster's
// instances, by the instance's UID. It shows what really runs, independently of rik's status.
func (c *Cluster) InstanceProcesses(program string) map[string][]Inside {
	found := map[string][]Inside{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return found
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		uid, inside, ok := inspect(pid, program, "/"+filepath.Base(c.Dir))
		if ok {
			found[uid] = append(found[uid], inside)
		}
	}
	return found
}

// inspect reads one process. ok is false if it is another program, is in no instance's cgroup
// below the parent, or has ended.
func inspect(pid int, program, parent string) (uid string, inside Inside, ok bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return "", Inside{}, false
	}
	// The name is in parentheses and may contain parentheses itself: proc(5).
	open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	if open < 0 || end < open || string(stat[open+1:end]) != program {
		return "", Inside{}, false
	}
	fields := strings.Fields(string(stat[end+1:]))
	const startTime = 22 - 3 // field 22 of proc(5), counted from field 3
	if len(fields) <= startTime || fields[0] == "Z" {
		return "", Inside{}, false
	}
	start, err := strconv.ParseUint(fields[startTime], 10, 64)
	if err != nil {
		return "", Inside{}, false
	}
	cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return "", Inside{}, false
	}
	_, below, ok := strings.Cut(string(cgroup), parent)
	if !ok {
		return "", Inside{}, false
	}
	uid = uidInPath.FindString(below)
	return uid, Inside{PID: pid, Start: start}, uid != ""
}
