package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/riklet/network/iptables"
	"rik.dev/rik/internal/riklet/network/nameserver"
	"rik.dev/rik/internal/riklet/network/overlay"
	"rik.dev/rik/internal/riklet/network/proxy"
)

// The chains of the kernel, and the one that Docker leaves to administrators. Docker evaluates
// DOCKER-USER before its own rules, and keeps what is in it.
const (
	chainForward = "FORWARD"
	chainInput   = "INPUT"
	chainDocker  = "DOCKER-USER"
)

func checkIptables(m *Machine) []Finding {
	switch {
	case m.Node.NoNetwork:
		return ok("This node has no network for instances, so it does not need iptables.")
	case m.Firewall.Problem != "":
		return []Finding{{
			Severity: Error, Message: "iptables cannot be used: " + strings.TrimSuffix(m.Firewall.Problem, ".") + ".",
			Affects: "instances have no network, and ports of workloads are not served", Fix: m.Distribution.install(packages{"iptables", "iptables-nft"}),
		}}
	case len(m.Firewall.Variants) == 0:
		return []Finding{{Severity: Info, Message: "The rules of iptables were not read: that needs root.", Fix: "sudo rik doctor"}}
	}
	used := m.Firewall.used()
	return ok(fmt.Sprintf("rik uses %s (%s).", used.Program, used.Name))
}

// used returns the variant that rik uses, or the zero value.
func (f Firewall) used() Variant {
	for _, v := range f.Variants {
		if v.Used {
			return v
		}
	}
	return Variant{}
}

func checkMixed(m *Machine) []Finding {
	var with []string
	for _, v := range m.Firewall.Variants {
		if v.Others || v.Own {
			with = append(with, v.Program)
		}
	}
	if len(with) < 2 {
		return ok("At most one variant of iptables has rules.")
	}
	f := Finding{
		Severity: Warning, Affects: "a rule of one variant that drops packets holds against the rules of the other",
		Message: fmt.Sprintf("Both variants of iptables have rules (%s). Every packet must pass both. rik uses %s.", strings.Join(with, ", "), m.Firewall.used().Program),
	}
	if m.Distribution.family() == "apt" && m.Firewall.used().Name != "" {
		// All programs then write to the variant that rik uses, after they are restarted.
		variant := "/usr/sbin/iptables-nft"
		if m.Firewall.used().Name == string(iptables.Legacy) {
			variant = "/usr/sbin/iptables-legacy"
		}
		f.Fix = "update-alternatives --set iptables " + variant + " && reboot"
	}
	return []Finding{f}
}

// checkForward finds what drops forwarded packets of instances. rik's own rules are the first of
// the variant that it uses. They accept packets there, whatever the policy is. They do not help
// against another variant or another table.
func checkForward(m *Machine) []Finding {
	if m.Node.NoNetwork {
		return ok("This node has no network for instances, so it forwards nothing.")
	}
	var all []Finding
	for _, v := range m.Firewall.Variants {
		all = append(all, v.forward(m)...)
	}
	for _, c := range m.Firewall.Chains {
		if c.Hook == "forward" && c.Drops && c.Table != firewalldTable && !c.acceptsForwarded(m.Firewall) {
			all = append(all, c.forward(m))
		}
	}
	if len(all) == 0 {
		return ok("No firewall drops what instances send and receive.")
	}
	return all
}

const forwardAffects = "instances do not reach other nodes and networks, and are not reached"

func (v Variant) forward(m *Machine) []Finding {
	chain := v.Filter[chainForward]
	if !drops(chain) {
		return nil
	}
	by := ""
	if slices.ContainsFunc(chain.Rules, func(r string) bool { return strings.Contains(r, "DOCKER") }) {
		by = ", which Docker sets"
	}
	policy := fmt.Sprintf("%s drops forwarded packets by default (chain %s%s)", v.Program, chainForward, by)
	switch {
	case v.Used && v.ownFirst():
		return []Finding{{Severity: OK, Object: v.Program, Message: policy + ". rik's rules come first and accept the packets of instances."}}
	case v.Used && m.Node.Running != "":
		return []Finding{{
			Severity: Error, Object: v.Program, Message: policy + ", and rik's rules are not the first ones.", Affects: forwardAffects,
			Fix: "systemctl restart " + m.nodeUnit(),
		}}
	case v.Used:
		return []Finding{{Severity: Info, Object: v.Program, Message: policy + ". rik puts its own rules first when the node starts."}}
	case v.accepts(m.Firewall):
		return []Finding{{Severity: OK, Object: v.Program, Message: policy + ", and accepts the packets of instances."}}
	}
	return []Finding{{
		Severity: Error, Object: v.Program, Affects: forwardAffects, Fix: v.acceptCommand(m.Firewall),
		Message: fmt.Sprintf("%s. rik's rules are in %s, so they do not help.", policy, m.Firewall.used().Program),
	}}
}

// nodeUnit is the systemd unit of the node.
func (m *Machine) nodeUnit() string {
	if m.Role == RoleServer {
		return "rik"
	}
	return "riklet"
}

// terminal matches rules without a condition that end a packet.
var terminal = regexp.MustCompile(`^-j (DROP|REJECT)( |$)`)

// drops reports whether packets that no rule accepts are dropped.
func drops(c iptables.Chain) bool {
	return c.Policy == "DROP" || slices.ContainsFunc(c.Rules, terminal.MatchString)
}

// ownFirst reports whether the first rule of FORWARD leads to rik's chain.
func (v Variant) ownFirst() bool {
	rules := v.Filter[chainForward].Rules
	return len(rules) > 0 && rules[0] == "-j "+proxy.ForwardChain
}

// accepts reports whether rules accept packets from and to the range of instances. Only rules that
// stand before any other that drops count as such; the fix puts its rules first.
func (v Variant) accepts(f Firewall) bool {
	from, to := "-s "+f.Range.String()+" -j ACCEPT", "-d "+f.Range.String()+" -j ACCEPT"
	chains := []string{chainForward}
	if slices.Contains(v.Filter[chainForward].Rules, "-j "+chainDocker) {
		chains = append(chains, chainDocker)
	}
	var both []string
	for _, name := range chains {
		for _, rule := range v.Filter[name].Rules {
			if terminal.MatchString(rule) {
				break
			}
			if rule == from || rule == to {
				both = append(both, rule)
			}
		}
	}
	return slices.Contains(both, from) && slices.Contains(both, to)
}

// acceptCommand returns the command that makes accepts true.
func (v Variant) acceptCommand(f Firewall) string {
	chain := chainForward
	if slices.Contains(v.Filter[chainForward].Rules, "-j "+chainDocker) {
		chain = chainDocker
	}
	accept := func(option string) string {
		return fmt.Sprintf("%s -I %s %s %s -j ACCEPT", v.Program, chain, option, f.Range)
	}
	return steps(accept("-s"), accept("-d"))
}

// acceptsForwarded reports whether rules accept packets from and to instances.
func (c NFTChain) acceptsForwarded(f Firewall) bool {
	return slices.Contains(c.Accepts, "saddr "+f.Range.String()) && slices.Contains(c.Accepts, "daddr "+f.Range.String())
}

func (c NFTChain) forward(m *Machine) Finding {
	insert := func(field string) string {
		return fmt.Sprintf("nft insert rule %s %s %s ip %s %s accept", c.Family, quote(c.Table), quote(c.Name), field, m.Firewall.Range)
	}
	return Finding{
		Severity: Error, Object: c.title(), Affects: forwardAffects, Fix: steps(insert("saddr"), insert("daddr")),
		Message: fmt.Sprintf("The nftables chain %s drops forwarded packets by default. rik's rules are in another table, so they do not help.", c.title()),
	}
}

func (c NFTChain) title() string { return c.Family + " " + c.Table + " " + c.Name }

// checkInput finds what drops packets to rik's own ports.
func checkInput(m *Machine) []Finding {
	needed := m.inbound()
	var all []Finding
	for _, v := range m.Firewall.Variants {
		closed := closedPorts(needed, func(p inboundPort) bool { return v.opens(p) })
		if drops(v.Filter[chainInput]) && len(closed) > 0 {
			all = append(all, inputFinding(m, v.Program, closed, v.openCommand(m, closed)))
		}
	}
	for _, c := range m.Firewall.Chains {
		closed := closedPorts(needed, func(p inboundPort) bool { return slices.Contains(c.Accepts, p.text()) })
		if c.Hook == "input" && c.Drops && c.Table != firewalldTable && len(closed) > 0 {
			all = append(all, inputFinding(m, c.title(), closed, c.openCommand(closed)))
		}
	}
	if len(all) == 0 {
		return ok("No firewall drops packets to rik's own ports.")
	}
	return all
}

// inboundPort is a port at which other machines reach this one.
type inboundPort struct {
	protocol string
	port     int
	// device is the only device on which packets arrive, or empty.
	device string
}

func (p inboundPort) text() string {
	if p.device != "" {
		return fmt.Sprintf("%s %s %d", p.device, p.protocol, p.port)
	}
	return fmt.Sprintf("%s %d", p.protocol, p.port)
}

// inbound returns the ports that a firewall must open. A node needs none for the control plane: it
// opens the connections itself.
func (m *Machine) inbound() []inboundPort {
	var ports []inboundPort
	if m.Role == RoleServer {
		for _, port := range []int{rikv1alpha1.PortAPI, rikv1alpha1.PortWorkers, rikv1alpha1.PortNodes} {
			ports = append(ports, inboundPort{"tcp", port, ""})
		}
	}
	if !m.Node.NoNetwork {
		ports = append(ports, inboundPort{"udp", overlay.Port, ""}, inboundPort{"udp", nameserver.Port, bridge.DefaultName}, inboundPort{"tcp", nameserver.Port, bridge.DefaultName})
	}
	return ports
}

func closedPorts(needed []inboundPort, open func(inboundPort) bool) []inboundPort {
	return slices.DeleteFunc(slices.Clone(needed), open)
}

func inputFinding(m *Machine, by string, closed []inboundPort, fix string) Finding {
	var names []string
	for _, p := range closed {
		names = append(names, p.text())
	}
	f := Finding{
		Severity: Warning, Object: by, Fix: fix,
		Message: fmt.Sprintf("%s drops packets by default, and no rule that this check knows accepts %s.", by, strings.Join(names, ", ")),
		Affects: "other nodes and clients do not reach this machine",
	}
	if m.Role == RoleNode {
		f.Affects = "instances of other nodes do not reach those of this one, or instances get no answers to DNS queries"
	}
	return f
}

// opens reports whether a rule accepts packets to a port. In the variant that rik uses, rik's rules
// accept the ports of the node's network.
func (v Variant) opens(p inboundPort) bool {
	if v.Used && (p.port == overlay.Port || p.port == nameserver.Port) {
		return true
	}
	pattern := regexp.MustCompile(fmt.Sprintf(`--dports? (\S+,)?%d(,|:| |$)`, p.port))
	for name, chain := range v.Filter {
		if name == chainForward || name == "OUTPUT" {
			continue
		}
		for _, rule := range chain.Rules {
			if strings.HasSuffix(rule, "-j ACCEPT") && strings.Contains(rule, "-p "+p.protocol) && pattern.MatchString(rule) {
				return true
			}
		}
	}
	return false
}

// openCommand returns the command that opens ports.
func (v Variant) openCommand(m *Machine, closed []inboundPort) string {
	var commands []string
	for _, p := range closed {
		on, in := "", ""
		if p.device != "" {
			on, in = " in on "+p.device+" to any port", " -i "+p.device
		}
		switch {
		case m.Firewall.UFW && p.device != "":
			commands = append(commands, fmt.Sprintf("ufw allow%s %d proto %s", on, p.port, p.protocol))
		case m.Firewall.UFW:
			commands = append(commands, fmt.Sprintf("ufw allow %d/%s", p.port, p.protocol))
		default:
			commands = append(commands, fmt.Sprintf("%s -I INPUT%s -p %s --dport %d -j ACCEPT", v.Program, in, p.protocol, p.port))
		}
	}
	return steps(commands...)
}

func (c NFTChain) openCommand(closed []inboundPort) string {
	var commands []string
	for _, p := range closed {
		on := ""
		if p.device != "" {
			on = "iifname " + p.device + " "
		}
		commands = append(commands, fmt.Sprintf("nft insert rule %s %s %s %s%s dport %d accept", c.Family, quote(c.Table), quote(c.Name), on, p.protocol, p.port))
	}
	return steps(commands...)
}

// firewalldTable is the table of firewalld in nftables.
const firewalldTable = "firewalld"

func checkFirewalld(m *Machine) []Finding {
	f := m.Firewall
	if !f.Firewalld {
		return ok("firewalld does not run.")
	}
	var closed []string
	for _, p := range m.inbound() {
		// The name server gets packets of instances only, whose range the other command opens.
		if port := fmt.Sprintf("%d/%s", p.port, p.protocol); p.device == "" && !slices.Contains(f.Open, port) {
			closed = append(closed, port)
		}
	}
	distrusts := !f.Trusts && !m.Node.NoNetwork
	if !distrusts && len(closed) == 0 {
		return ok("firewalld trusts the range of instances, and opens rik's own ports.")
	}
	var commands []string
	if distrusts {
		commands = append(commands, fmt.Sprintf("firewall-cmd --permanent --zone=trusted --add-source=%s", f.Range))
	}
	for _, port := range closed {
		commands = append(commands, "firewall-cmd --permanent --add-port="+port)
	}
	fix := steps(append(commands, "firewall-cmd --reload")...)
	if distrusts {
		return []Finding{{
			Severity: Error, Message: fmt.Sprintf("firewalld runs and does not trust %s, the range of instances.", f.Range),
			Affects: forwardAffects, Fix: fix,
		}}
	}
	return []Finding{{
		Severity: Warning, Message: fmt.Sprintf("firewalld runs, and its default zone does not open %s.", strings.Join(closed, ", ")),
		Affects: "other nodes and clients do not reach this machine", Fix: fix,
	}}
}
