package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

func checkIPForward(m *Machine) []Finding {
	n := m.Network
	switch {
	case m.Node.NoNetwork:
		return ok("This node has no network for instances, so it forwards nothing.")
	case n.Forward == "":
		return []Finding{{Severity: Info, Message: "The setting net.ipv4.ip_forward cannot be read."}}
	case n.Forward == "0" && m.Node.Running != "":
		return []Finding{{
			Severity: Error, Message: "net.ipv4.ip_forward is 0 although the node runs: another program has changed it.",
			Affects: forwardAffects, Fix: sysctl("net.ipv4.ip_forward", "1"),
		}}
	case len(n.ForwardOff) > 0:
		return []Finding{{
			Severity: Warning, Affects: "instances have no network after these files are applied, until the node sets the value again",
			Message: fmt.Sprintf("%s sets net.ipv4.ip_forward to 0. The node sets it to 1 when it starts.", strings.Join(n.ForwardOff, ", ")),
			Fix:     "sed -i 's/^ *net.ipv4.ip_forward *=.*/net.ipv4.ip_forward = 1/' " + quoteAll(n.ForwardOff),
		}}
	case n.Forward == "0":
		return []Finding{{Severity: Info, Message: "net.ipv4.ip_forward is 0. The node sets it to 1 when it starts."}}
	}
	return ok("The machine forwards IPv4 packets.")
}

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return strings.Join(quoted, " ")
}

// strict is the value of rp_filter with which a packet must arrive on the device through which its
// answer leaves. See Documentation/networking/ip-sysctl.rst of the kernel.
const strict = "1"

func checkRPFilter(m *Machine) []Finding {
	var devices []string
	for _, device := range slices.Sorted(maps.Keys(m.Network.RPFilter)) {
		if m.Network.RPFilter[device] == strict {
			devices = append(devices, device)
		}
	}
	if len(devices) == 0 || len(m.Network.RPFilter) < 2 {
		return ok("Reverse path filters do not drop packets of other nodes.")
	}
	commands := []string{sysctl("net.ipv4.conf.all.rp_filter", "2")}
	for _, device := range devices {
		commands = append(commands, sysctl("net.ipv4.conf."+strings.ReplaceAll(device, ".", "/")+".rp_filter", "2"))
	}
	return []Finding{{
		Severity: Warning, Fix: steps(commands...),
		Message: fmt.Sprintf("The machine has default routes over several devices, and the reverse path filter of %s is strict.", strings.Join(devices, ", ")),
		Affects: "packets of other nodes that arrive on one device and are answered over another are dropped",
	}}
}

func checkRanges(m *Machine) []Finding {
	if m.Network.Clash == "" {
		return ok("The ranges of the cluster do not overlap with networks of this machine.")
	}
	return []Finding{{
		Severity: Error, Message: "Networks overlap: " + strings.TrimSuffix(m.Network.Clash, ".") + ".",
		Affects: "the node gets no network; the ranges cannot be changed once the cluster exists",
	}}
}

// fullShare is the share of the connection table, in percent, above which connections may be
// refused soon.
const fullShare = 80

func checkConntrack(m *Machine) []Finding {
	n := m.Network
	if n.MaxTracked == 0 {
		return []Finding{{Severity: OK, Message: "The kernel does not track connections yet."}}
	}
	if n.Tracked*100 < n.MaxTracked*fullShare {
		return ok(fmt.Sprintf("The kernel tracks %d of at most %d connections.", n.Tracked, n.MaxTracked))
	}
	return []Finding{{
		Severity: Warning, Message: fmt.Sprintf("The kernel tracks %d of at most %d connections.", n.Tracked, n.MaxTracked),
		Affects: "new connections of instances and to ports of workloads are dropped when the table is full",
		Fix:     sysctl("net.netfilter.nf_conntrack_max", fmt.Sprint(4*n.MaxTracked)),
	}}
}

// checkTroubles returns what the node's own checks have found; see package reach.
func checkTroubles(m *Machine) []Finding {
	var all []Finding
	for _, c := range []struct {
		id, fine, none, affects string
		troubles                []string
	}{
		{"network-overlay", "Packets pass between instances of this node and of others.", "No node has tested yet whether packets pass between instances of different nodes.", forwardAffects, m.Network.Overlay},
		{"network-names", "Instances get answers to DNS queries.", "No node has tested yet whether instances get answers to DNS queries.", "instances cannot resolve names", m.Network.Names},
	} {
		switch {
		case c.troubles == nil:
			all = append(all, Finding{ID: c.id, Severity: OK, Message: c.none})
		case len(c.troubles) == 0:
			all = append(all, Finding{ID: c.id, Severity: OK, Message: c.fine})
		}
		for _, t := range c.troubles {
			all = append(all, Finding{ID: c.id, Severity: Error, Message: "The node reports: " + strings.TrimSuffix(t, ".") + ".", Affects: c.affects, Fix: m.firewallFix()})
		}
	}
	return all
}

// firewallFix returns the command of the first finding about a firewall. It is the likely cause of
// packets that do not arrive.
func (m *Machine) firewallFix() string {
	for _, f := range slices.Concat(checkFirewalld(m), checkForward(m), checkInput(m)) {
		if f.Severity.rank() < OK.rank() && f.Fix != "" {
			return f.Fix
		}
	}
	return ""
}
