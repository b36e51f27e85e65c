// Package e2e tests only the built programs, as a user would use them.
//
// It checks from outside: exit codes and outputs, /proc, mounts, cgroups, runc. make e2e builds
// the programs and runs it, as root.
package e2e

import (
	"testing"

	"rik.dev/rik/internal/testkit/rikcluster"
)

func TestMain(m *testing.M) {
	rikcluster.Main(m, "TestPrivilegedSplitter", "TestPrivilegedKinds", "TestPrivilegedSplitDemo", "TestPrivilegedMulticluster",
		"TestPrivilegedFence", "TestPrivilegedKill", "TestPrivilegedMulticlusterDrills", "TestPrivilegedSplitterDrill")
}
