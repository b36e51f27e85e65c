package runner

import (
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/microvm"
	"rik.dev/rik/internal/riklet/runner/oci"
	"rik.dev/rik/internal/riklet/runner/process"
)

// supervisors is the cgroup of all supervisors. It cannot clash with a UID, because no UID has an
// underscore.
const supervisors = "_shims"

func (d *Driver) cgroup(uid string) string { return d.cfg.CgroupParent + "/" + uid }

// recordsFile is the file of the instances' records in Config.Root.
const recordsFile = "pods.db"

// RunNames returns the names that a driver creates in Config.Run. With them, a run directory can
// be distinguished from a directory of another program.
func RunNames() []string {
	return []string{engine.Instances, oci.RunDirectory, microvm.RunDirectory, process.RunDirectory}
}
