package riklet

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// defaultCgroupParent is the cgroup of the instances of a node with the default state directory.
const defaultCgroupParent = "/rik"

var cgroupName = regexp.MustCompile(`^(/[A-Za-z0-9][A-Za-z0-9._-]*)+$`)

// ValidCgroupParent reports whether a cgroup for instances is a plain path such as /rik.
func ValidCgroupParent(name string) bool { return cgroupName.MatchString(name) }

// CgroupParent returns the default cgroup of the instances, a different one for each state
// directory. Several nodes on one machine need that, because each removes cgroups that are not in
// its records.
func CgroupParent(stateDir string) string {
	if stateDir == DefaultStateDir {
		return defaultCgroupParent
	}
	sum := sha256.Sum256([]byte(stateDir))
	return defaultCgroupParent + "-" + hex.EncodeToString(sum[:4])
}
