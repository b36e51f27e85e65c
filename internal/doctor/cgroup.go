package doctor

import (
	"fmt"
	"slices"
	"strings"

	"rik.dev/rik/internal/riklet/cgroup"
)

func checkCgroup(m *Machine) []Finding {
	c := m.Cgroup
	if m.NoNode {
		return ok("This machine runs no instances, so it needs no cgroups.")
	}
	if c.Problem != "" {
		return []Finding{{
			ID: "cgroup-mode", Severity: Error, Message: "Control groups cannot be used: " + strings.TrimSuffix(c.Problem, ".") + ".",
			Affects: "the node does not start", Fix: "mount -t cgroup2 none /sys/fs/cgroup",
		}}
	}
	all := []Finding{cgroupMode(c), cgroupControllers(m)}
	return append(all, cgroupDelegation(c))
}

func cgroupMode(c Cgroup) Finding {
	if c.Mode == "v2" {
		return Finding{ID: "cgroup-mode", Severity: OK, Message: "The machine has cgroup v2."}
	}
	return Finding{
		ID: "cgroup-mode", Severity: Info, Message: fmt.Sprintf("The machine has cgroups in the mode %s. rik works with it; new distributions have v2 only.", c.Mode),
	}
}

func cgroupControllers(m *Machine) Finding {
	var missing []string
	for _, controller := range cgroup.Required {
		if !slices.Contains(m.Cgroup.Controllers, controller) {
			missing = append(missing, controller)
		}
	}
	if len(missing) == 0 {
		return Finding{ID: "cgroup-controllers", Severity: OK, Message: fmt.Sprintf("The cgroup controllers %s are available.", strings.Join(cgroup.Required, ", "))}
	}
	f := Finding{
		ID: "cgroup-controllers", Severity: Error, Affects: "the limits of instances have no effect, and those with limits do not start",
		Message: fmt.Sprintf("The cgroup controller %s is not available. Add cgroup_enable=%s to the command line of the kernel.", strings.Join(missing, ", "), missing[0]),
	}
	// Raspberry Pi OS and some clouds switch off the controller of memory.
	add := `sed -i 's/^GRUB_CMDLINE_LINUX="/&cgroup_enable=memory swapaccount=1 /' /etc/default/grub`
	if missing[0] == "memory" {
		switch m.Distribution.family() {
		case "apt":
			f.Fix = steps(add, "update-grub", "reboot")
		case "dnf":
			f.Fix = steps(`grubby --update-kernel=ALL --args="cgroup_enable=memory"`, "reboot")
		}
	}
	return f
}

func cgroupDelegation(c Cgroup) Finding {
	f := Finding{ID: "cgroup-delegation", Severity: Error, Affects: "instances do not start"}
	switch {
	case c.Write.Failed():
		f.Message = "The cgroups of instances cannot be created: " + c.Write.Err + ". In a container, mount /sys/fs/cgroup with write access."
		f.Fix = "mount -o remount,rw /sys/fs/cgroup"
	case c.Occupied && !contains(c.Delegated, cgroup.Required):
		f.Message = "The controllers of cgroup v2 cannot be enabled, because processes are in the topmost cgroup of this container. Move them to a cgroup below it."
		f.Fix = "mkdir -p /sys/fs/cgroup/init && xargs -rn1 < /sys/fs/cgroup/cgroup.procs > /sys/fs/cgroup/init/cgroup.procs"
	case !c.Write.Tried:
		return Finding{ID: f.ID, Severity: Info, Message: "It was not tested whether cgroups can be created: the test needs root.", Fix: "sudo rik doctor"}
	default:
		return Finding{ID: f.ID, Severity: OK, Message: "The cgroups of instances can be created."}
	}
	return f
}

// contains reports whether all of some words are in a list.
func contains(list, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(list, w) })
}
