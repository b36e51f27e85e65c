package facts

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/riklet/cgroup"
)

func (g *gatherer) cgroup(root bool) doctor.Cgroup {
	layout, err := cgroup.Detect()
	if err != nil {
		return doctor.Cgroup{Problem: err.Error()}
	}
	c := doctor.Cgroup{Mode: layout.Mode(), Controllers: layout.Controllers()}
	if root {
		// Root may write unless the mount is read-only.
		c.Write = probe(unix.Access(filepath.Dir(layout.Dir("/probe")), unix.W_OK))
	}
	if layout.Mode() == "v2" {
		c.Delegated = strings.Fields(text(filepath.Join(layout.Unified, "cgroup.subtree_control")))
		// Only the topmost cgroup of the machine has no cgroup.type.
		c.Occupied = text(filepath.Join(layout.Unified, "cgroup.type")) != "" && text(filepath.Join(layout.Unified, "cgroup.procs")) != ""
	}
	return c
}
