package packages

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/pages"
	"rik.dev/rik/internal/testkit/privileged"
)

// firewall is a firewall program that drops what is not allowed.
type firewall struct {
	name string
	// start starts the program, also for later boots.
	start string
	// finding is what doctor finds on a server, and onNode on a node, if it finds anything there.
	finding, onNode string
	// block is the number of the program's block in docs/guide.md.
	block int
}

var firewalls = []firewall{
	{name: "ufw", start: "ufw --force enable", finding: "firewall-input", block: 2},
	{name: "firewalld", start: "systemctl enable -q --now firewalld && firewall-cmd --state", finding: "firewall-firewalld", onNode: "firewall-firewalld", block: 1},
	{
		name: "nftables", finding: "firewall-input", onNode: "firewall-forward", block: 3,
		start: `cat >/etc/nftables.conf <<'NFT'
table inet filter {
  chain input { type filter hook input priority 0; policy drop; ct state established,related accept; iif lo accept; meta l4proto icmp accept; }
  chain forward { type filter hook forward priority 0; policy drop; ct state established,related accept; }
}
NFT
systemctl enable -q --now nftables && nft list table inet filter`,
	},
}

// finding is a finding of doctor.
type finding struct{ ID, Severity, Message, Fix string }

// doctor returns the findings of a program's doctor that are errors or warnings.
func (m *machine) doctor(command string) []finding {
	m.Helper()
	out := m.run(command + " -o json 2>/dev/null || true")
	var report struct{ Findings []finding }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		m.Fatalf("%s: %v\n%s", command, err, out)
	}
	return slices.DeleteFunc(report.Findings, func(f finding) bool { return f.Severity != "error" && f.Severity != "warning" })
}

// repair requires that doctor finds something, runs the commands of all findings as printed, and
// requires that doctor finds nothing more.
func (m *machine) repair(command, id string) {
	m.Helper()
	found := m.doctor(command)
	if !slices.ContainsFunc(found, func(f finding) bool { return f.ID == id }) {
		m.Fatalf("doctor does not find %s: %+v", id, found)
	}
	for _, f := range found {
		m.Logf("%s: %s\n%s", f.ID, f.Message, f.Fix)
		m.run(f.Fix)
	}
	if found = m.doctor(command); len(found) > 0 {
		m.Errorf("after the commands of doctor there is still %+v", found)
	}
}

// TestPrivilegedFirewallPrograms runs a server and a node on machines with the firewall programs of Debian.
// Before the commands that doctor prints on the server, the node does not reach it. After them, and
// the commands of docs/guide.md on the node, the node joins, its checks of the network pass, and both
// machines reach instances on both. This also holds after a boot of the server.
func TestPrivilegedFirewallPrograms(t *testing.T) {
	privileged.Require(t)
	now, image := environment(t, "RIK_PACKAGES"), environment(t, "RIK_SAMPLE_IMAGE")
	guide, install := pages.Open(t, "docs/guide.md"), pages.Open(t, "docs/install.md")
	for _, f := range firewalls {
		byHand := guide.Block("Firewalls of other programs", f.block)
		packages, join := install.Block("Debian and Ubuntu", 2), install.Block("Add a node", 2)
		server := install.Block("Debian and Ubuntu", 1)
		t.Run(f.name, func(t *testing.T) {
			a, b := newNamed(t, "server"), newNamed(t, "node")
			link(a, b)
			for _, m := range []*machine{a, b} {
				m.packagesOf(now, "now")
				m.put(image)
				m.debian(f.name)
				m.run(f.start)
			}
			a.asPrinted(server)
			a.eventually("rikctl get nodes", "Ready")
			b.asPrinted(packages)
			reach := "riklet doctor --server https://10.0.0.1:5000 --only server"
			if found := b.doctor(reach); !slices.ContainsFunc(found, func(f finding) bool { return f.ID == "server-reachable" }) {
				t.Errorf("the node reaches the server through the firewall: %+v", found)
			}
			a.repair("rik doctor --only firewall", f.finding)
			if found := b.doctor(reach); len(found) > 0 {
				t.Errorf("the node does not reach the server: %+v", found)
			}

			token := strings.TrimSpace(a.run("cat /var/lib/rik/data/node-token"))
			b.asPrinted("TOKEN=" + token + "\n" + join)
			a.eventually("rikctl get nodes node", "Ready")
			checkNode := "riklet doctor --only firewall"
			if f.onNode != "" {
				if found := b.doctor(checkNode); !slices.ContainsFunc(found, func(found finding) bool { return found.ID == f.onNode }) {
					t.Errorf("doctor on the node finds %+v, not %s", found, f.onNode)
				}
			}
			b.asPrinted(byHand)
			if found := b.doctor(checkNode); len(found) > 0 {
				t.Errorf("after the commands of the guide, doctor on the node finds %+v", found)
			}
			passes(a, b)

			if f.name == "nftables" {
				return // rules of the command nft do not last
			}
			a.reboot()
			link(a, b)
			a.run("systemctl restart rik") // it started before the machine had an address
			if found := a.doctor("rik doctor --only firewall"); len(found) > 0 {
				t.Errorf("after a boot there is %+v", found)
			}
			passes(a, b)
		})
	}
}

// passes waits until the nodes of two machines are Ready without conditions of the network, and until
// each machine gets answers from instances on both.
func passes(a, b *machine) {
	a.Helper()
	a.run("rikctl apply -f /test/spread.yaml")
	a.eventually(`rikctl wait instances -l rik.dev/workload=spread --for=condition=Ready --timeout=60s && rikctl get instances -o wide | grep -c -E ' (server|node) '`, "2")
	for _, m := range []*machine{a, b} {
		m.eventually(`for i in $(seq 40); do curl -sf -m 5 http://127.0.0.1:30081/; done | sort -u | grep -c '^hello from spread-'`, "2")
	}
	a.eventually(`if rikctl get nodes -o jsonpath='{.items[*].status.conditions[*].type}' | grep Unavailable; then exit 1; fi; echo fine`, "fine")
	out := a.run("for i in $(rikctl get instances -l rik.dev/workload=spread -o jsonpath='{.items[*].metadata.name}'); do rikctl exec $i -- /hello -get http://spread/; done")
	if strings.Count(out, "hello from spread-") != 2 {
		a.Errorf("instances asked for the name of their workload and got %s", out)
	}
}
