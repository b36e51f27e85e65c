package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// packageOf are the packages of programs that do not belong to rik.
var packageOf = map[string]packages{
	"iptables":            {"iptables", "iptables-nft"},
	"mke2fs":              {"e2fsprogs", "e2fsprogs"},
	"qemu-system-aarch64": {"qemu-system-arm", "qemu-kvm-core"},
	"qemu-system-x86_64":  {"qemu-system-x86", "qemu-kvm-core"},
}

func checkMissingPrograms(m *Machine) []Finding {
	var all []Finding
	for _, p := range m.Programs {
		if p.Path != "" {
			continue
		}
		f := Finding{Object: p.Name, Severity: Info, Message: fmt.Sprintf("The program %s is not installed.", p.Name), Fix: m.Distribution.install(packageOf[p.Name])}
		switch {
		case p.Required != "" && p.Part:
			f.Severity, f.Affects = Error, p.Required
			f.Message = fmt.Sprintf("The program %s is neither next to this program nor on the PATH. It is part of rik: install rik again.", p.Name)
		case p.Required != "":
			f.Severity, f.Affects = Warning, p.Required
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return ok("All programs that rik uses are installed.")
	}
	return all
}

// versioned are the programs that have rik's own version.
var versioned = []string{"rik", "riklet", "rikctl"}

func checkVersions(m *Machine) []Finding {
	var names []string
	versions := map[string]bool{}
	for _, p := range m.Programs {
		if slices.Contains(versioned, p.Name) && p.Version != "" {
			names = append(names, fmt.Sprintf("%s (%s) is %s", p.Name, p.Path, p.Version))
			versions[p.Version] = true
		}
	}
	if len(versions) < 2 {
		return ok("The programs of rik on this machine have the same version.")
	}
	return []Finding{{
		Severity: Warning, Message: "The programs of rik on this machine have different versions: " + strings.Join(names, ", ") + ".",
		Affects: "a program of another version may refuse a command, or lack a field of an object", Fix: m.reinstall(),
	}}
}

// reinstall returns the command that installs the newest version of all packages of rik.
func (m *Machine) reinstall() string {
	name := "riklet"
	if m.Role == RoleServer {
		name = "rik riklet rikctl"
	}
	switch m.Distribution.family() {
	case "apt":
		return "apt-get update && apt-get install -y " + name
	case "dnf":
		return "dnf upgrade -y " + name
	}
	return ""
}

func checkRunc(m *Machine) []Finding {
	i := slices.IndexFunc(m.Programs, func(p Program) bool { return p.Name == "runc" })
	if i < 0 || m.Programs[i].Path == "" {
		return ok("There is no version of runc to check.") // program-missing reports it
	}
	p := m.Programs[i]
	if p.Problem == "" {
		return ok(fmt.Sprintf("%s (%s) has no known container escapes.", p.Path, cmp.Or(p.Version, "unknown version")))
	}
	return []Finding{{
		Severity: Error, Object: p.Path, Message: capital(strings.TrimSuffix(p.Problem, ".")) + ". The packages of rik contain a version without these faults.",
		Affects: "the node does not start, unless --allow-old-runc is set", Fix: m.Distribution.install(packages{"--only-upgrade runc", "runc"}),
	}}
}

func checkRunning(m *Machine) []Finding {
	var all []Finding
	for _, p := range m.Processes {
		if !p.Replaced {
			continue
		}
		f := Finding{
			Severity: Warning, Object: p.Program,
			Message: fmt.Sprintf("Process %d runs a file of %s that was replaced or removed: it has the old version.", p.PID, p.Program),
			Affects: "the new version works only after a restart; instances keep running during it",
		}
		if p.Unit != "" {
			f.Fix = "systemctl restart " + quote(p.Unit)
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return ok("No program of rik runs in an old version.")
	}
	return all
}
