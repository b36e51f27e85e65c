package doctor

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The lowest version of the kernel that has all system calls of rik: close_range(2) with
// CLOSE_RANGE_CLOEXEC, with which Apps start, came with 5.11.
const (
	minKernelMajor = 5
	minKernelMinor = 11
)

var release = regexp.MustCompile(`^(\d+)\.(\d+)`)

func checkRoot(m *Machine) []Finding {
	if m.Root {
		return ok("The checks ran as root.")
	}
	return []Finding{{
		Severity: Warning, Message: "The checks did not run as root, so that several of them have no result.",
		Affects: "this report", Fix: "sudo rik doctor",
	}}
}

func checkKernelVersion(m *Machine) []Finding {
	v := release.FindStringSubmatch(m.Kernel.Release)
	if v == nil {
		return []Finding{{Severity: Warning, Message: fmt.Sprintf("The version of the kernel, %q, is unknown.", m.Kernel.Release)}}
	}
	major, _ := strconv.Atoi(v[1])
	minor, _ := strconv.Atoi(v[2])
	if major > minKernelMajor || major == minKernelMajor && minor >= minKernelMinor {
		return ok(fmt.Sprintf("The kernel is %s; rik needs %d.%d or later.", m.Kernel.Release, minKernelMajor, minKernelMinor))
	}
	return []Finding{{
		Severity: Error, Message: fmt.Sprintf("The kernel is %s; rik needs %d.%d or later.", m.Kernel.Release, minKernelMajor, minKernelMinor),
		Affects: "Apps do not start, and containers may not", Fix: m.Distribution.install(packages{"linux-image-generic", "kernel"}),
	}}
}

// Feature is a feature of the kernel.
type Feature string

// The features that rik uses.
const (
	FeatureOverlay Feature = "overlay"
	FeatureVeth    Feature = "veth"
	FeatureBridge  Feature = "bridge"
	FeatureVXLAN   Feature = "vxlan"
	FeatureTUN     Feature = "tun"
	// FeatureRules is the support for all of rik's rules in iptables.
	FeatureRules   Feature = "rules"
	FeatureSeccomp Feature = "seccomp"
	FeatureUsers   Feature = "user-namespaces"
	FeatureKVM     Feature = "kvm"
)

// feature says what is known about a feature before any machine is looked at.
type feature struct {
	name Feature
	// what completes "The kernel supports".
	what string
	// severity is that of a machine without it.
	severity Severity
	// network is true if only nodes with a network for instances need it.
	network bool
	affects string
	// options of the kernel's configuration, and the modules that have the feature.
	options, modules []string
}

var features = []feature{
	{FeatureOverlay, "overlay file systems", Error, false, "Pods do not start", []string{"CONFIG_OVERLAY_FS"}, []string{"overlay"}},
	{FeatureVeth, "virtual Ethernet devices", Error, true, "Pods and Apps have no network", []string{"CONFIG_VETH"}, []string{"veth"}},
	{FeatureBridge, "bridges", Error, true, "instances have no network", []string{"CONFIG_BRIDGE"}, []string{"bridge"}},
	{FeatureVXLAN, "VXLAN devices", Warning, true, "instances do not reach those of nodes in another network", []string{"CONFIG_VXLAN"}, []string{"vxlan"}},
	{FeatureTUN, "TAP devices", Warning, true, "Functions and Pods in microVMs have no network", []string{"CONFIG_TUN"}, []string{"tun"}},
	{
		FeatureRules, "the firewall rules of rik (nf_tables or iptables, with NAT and connection tracking)", Error, true,
		"instances have no network, and ports of workloads are not served",
		[]string{"CONFIG_NF_CONNTRACK", "CONFIG_NF_NAT", "CONFIG_NETFILTER_XT_MATCH_ADDRTYPE", "CONFIG_NETFILTER_XT_MATCH_CONNTRACK", "CONFIG_NETFILTER_XT_CONNMARK"},
		[]string{"nf_conntrack", "nf_nat", "xt_addrtype", "xt_conntrack", "xt_connmark", "xt_MASQUERADE"},
	},
	{FeatureSeccomp, "seccomp filters", Error, false, "Pods do not start", []string{"CONFIG_SECCOMP_FILTER"}, nil},
	{FeatureUsers, "user namespaces", Info, false, "nothing of rik; some programs in containers, such as browsers and builders of images, use them", []string{"CONFIG_USER_NS"}, nil},
	{FeatureKVM, "KVM", Info, false, "Functions and Pods in microVMs are emulated, and run about ten times slower", []string{"CONFIG_KVM"}, []string{"kvm_intel", "kvm_amd"}},
}

// id is the ID of the findings about a feature.
func (f feature) id() string { return "kernel-" + string(f.name) }

func featureIDs() []string {
	var ids []string
	for _, f := range features {
		ids = append(ids, f.id())
	}
	return ids
}

func checkFeatures(m *Machine) []Finding {
	var all []Finding
	for _, f := range features {
		found := f.find(m)
		found.ID = f.id()
		all = append(all, found)
	}
	return all
}

func (f feature) find(m *Machine) Finding {
	probe := m.Kernel.Probes[f.name]
	switch {
	case probe.Works():
		return Finding{Severity: OK, Message: fmt.Sprintf("The kernel supports %s.", f.what)}
	case m.NoNode:
		return Finding{Severity: OK, Message: fmt.Sprintf("This machine runs no instances, so it does not need %s.", f.what)}
	case f.network && m.Node.NoNetwork:
		return Finding{Severity: OK, Message: fmt.Sprintf("This node has no network for instances, so it does not need %s.", f.what)}
	case !probe.Tried:
		return f.untried(m)
	}
	why, fix := f.cause(m)
	return Finding{
		Severity: f.severity, Affects: f.affects, Fix: fix,
		Message: strings.TrimSpace(fmt.Sprintf("The kernel does not support %s: %s. %s", f.what, strings.TrimSuffix(probe.Err, "."), why)),
	}
}

// untried concludes from the configuration of the kernel.
func (f feature) untried(m *Machine) Finding {
	for _, option := range f.options {
		if value, known := m.Kernel.Config[option]; known && value == "n" || m.Kernel.Config != nil && !known {
			return Finding{
				Severity: f.severity, Affects: f.affects,
				Message: fmt.Sprintf("The kernel was built without %s, so it does not support %s.", option, f.what),
			}
		}
	}
	return Finding{Severity: Info, Message: fmt.Sprintf("It was not tested whether the kernel supports %s: the test needs root.", f.what), Fix: "sudo rik doctor"}
}

// cause says why a feature is missing, from the configuration and the modules of the kernel, and
// which command adds it.
func (f feature) cause(m *Machine) (why, fix string) {
	if f.name == FeatureKVM {
		return "The processor lacks virtualization, it is off in the firmware, or this is a virtual machine without nested virtualization.", ""
	}
	var missing, idle []string
	for _, module := range f.modules {
		switch {
		case m.Kernel.Loaded[module] || m.Kernel.Builtin[module]:
		case m.Kernel.Installed[module]:
			idle = append(idle, module)
		default:
			missing = append(missing, module)
		}
	}
	off := ""
	for _, option := range f.options {
		if value, known := m.Kernel.Config[option]; m.Kernel.Config != nil && (!known || value == "n") {
			off = option
		}
	}
	switch {
	case off != "":
		return fmt.Sprintf("The kernel was built without %s: use another kernel.", off), ""
	case len(idle) > 0:
		modprobe := "modprobe -a " + strings.Join(idle, " ")
		return fmt.Sprintf("The module %s is installed and not loaded.", strings.Join(idle, ", ")),
			steps(modprobe, fmt.Sprintf(`printf '%s\n' >> /etc/modules-load.d/rik.conf`, strings.Join(idle, `\n`)))
	case len(missing) > 0 && m.Distribution.ID == "ubuntu":
		return fmt.Sprintf("The module %s is not installed.", strings.Join(missing, ", ")), "apt-get install -y linux-modules-extra-$(uname -r)"
	case len(missing) > 0 && m.Distribution.family() == "dnf":
		return fmt.Sprintf("The module %s is not installed.", strings.Join(missing, ", ")), "dnf install -y kernel-modules-extra-$(uname -r)"
	case len(missing) > 0:
		return fmt.Sprintf("The module %s is not installed.", strings.Join(missing, ", ")), m.Distribution.install(packages{apt: "linux-image-" + debianArch(m)})
	}
	return "", ""
}

// debianArch returns the architecture in the names of Debian's kernels, from that of the kernel.
func debianArch(m *Machine) string {
	if strings.Contains(m.Kernel.Release, "arm64") {
		return "arm64"
	}
	return "amd64"
}
