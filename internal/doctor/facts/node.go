package facts

import (
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/lockfile"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/riklet/nodelock"
)

// node returns the state of the node, and what nodes have created on this machine.
func (g *gatherer) node(f doctor.Firewall) doctor.Node {
	n := doctor.Node{StateDir: g.cfg.StateDir, RunDir: g.cfg.RunDir, CgroupParent: g.cfg.CgroupParent, NoNetwork: g.cfg.NoNetwork}
	lock := filepath.Join(n.StateDir, nodelock.LockFile)
	_, err := os.Stat(lock)
	n.Installed, n.Running = err == nil, lockfile.HeldBy(lock)
	links, err := netlink.LinkList()
	if err == nil {
		for _, link := range links {
			if name := link.Attrs().Name; name == bridge.DefaultName || bridge.IsDevice(name) {
				n.Links = append(n.Links, name)
			}
		}
	}
	for _, v := range f.Variants {
		if v.Own {
			n.Rules = append(n.Rules, v.Program)
		}
	}
	for _, dir := range []string{n.StateDir, n.RunDir} {
		if below, err := mounts.Below(dir); err == nil {
			n.Mounts = append(n.Mounts, below...)
		}
	}
	if layout, err := cgroup.Detect(); err == nil {
		n.Processes = len(layout.Processes(n.CgroupParent))
	}
	return n
}
