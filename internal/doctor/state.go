package doctor

import (
	"fmt"
	"path/filepath"
	"strings"
)

func checkLeftover(m *Machine) []Finding {
	n := m.Node
	var found []string
	add := func(what string, list []string) {
		if len(list) > 0 {
			found = append(found, what+" "+excerptOf(list))
		}
	}
	add("the network devices", n.Links)
	add("rules in", n.Rules)
	add("mounts at", n.Mounts)
	if n.Processes > 0 {
		found = append(found, fmt.Sprintf("%d processes in the cgroup %s", n.Processes, n.CgroupParent))
	}
	purge := fmt.Sprintf("riklet purge --state-dir %s --run-dir %s --cgroup-parent %s", quote(n.StateDir), quote(n.RunDir), quote(n.CgroupParent))
	switch {
	case n.Running != "":
		return ok(fmt.Sprintf("The node of this machine runs: %s.", n.Running))
	case len(found) == 0 && !n.Installed:
		return ok("An earlier installation has left nothing on this machine.")
	case n.Installed:
		f := Finding{
			Severity: Info, Object: n.StateDir, Fix: purge,
			Message: fmt.Sprintf("The node with the state directory %s does not run. It continues with its instances when it starts; the command removes it.", n.StateDir),
		}
		if len(found) > 0 {
			f.Message = fmt.Sprintf("The node with the state directory %s does not run, and its instances still exist: %s. It continues with them when it starts; the command removes them.", n.StateDir, strings.Join(found, "; "))
		}
		return []Finding{f}
	}
	return []Finding{{
		Severity: Warning, Message: "An earlier installation has left " + strings.Join(found, "; ") + ".",
		Affects: "a new node may refuse to start, and rules may drop packets of other programs", Fix: n.clean(purge),
	}}
}

// clean returns the command that removes what is left without a state directory. It makes the
// directory look like a node's, so that purge removes all that a node of these places can have.
func (n Node) clean(purge string) string {
	return steps(fmt.Sprintf("mkdir -p %s %s", quote(filepath.Join(n.StateDir, "network")), quote(filepath.Join(n.StateDir, "images/layers"))), purge)
}

// excerptOf names at most five elements of a list.
func excerptOf(list []string) string {
	const most = 5
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
