package network

import (
	"errors"
	"strings"
	"testing"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/testkit/netnstest"
	"rik.dev/rik/internal/testkit/privileged"
)

// firewall is the name of the foreign table in these tests.
const firewall = "foreign"

// TestPrivilegedAFirewallBlocksNames checks that a node reports that another program's nftables
// table drops what instances ask. rik's own rules accept it, which does not help.
func TestPrivilegedAFirewallBlocksNames(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	a, _, _, table := neighbors(t)
	table.Peers = table.Peers[:1]
	blocked := []string{"firewall", "from the link rik0", "UDP and TCP port 4953", "firewall-cmd", "ufw allow in on rik0 to any port 4953", "nftables"}

	// Blocked when it joins: it reports that from the start.
	a.Firewall(firewall, netnstest.Input, "lo", "eth0")
	a.start(table)
	a.troubledBy(nodestate.TroubleNamesBlocked, "not known yet")
	a.troubledBy(nodestate.TroubleNamesBlocked, blocked...)
	// A restart does not make it look healthy.
	a.stop()
	if links := a.Run("ip", "link"); strings.Contains(links, bridge.CheckDevice()) {
		t.Errorf("links after the end of the riklet, with its check port:\n%s", links)
	}
	a.start(nil)
	a.troubledBy(nodestate.TroubleNamesBlocked, blocked...)
	a.Firewall(firewall, netnstest.Input, "lo", "eth0", "rik0")
	a.whole()
	// Blocked later.
	a.Firewall(firewall, netnstest.Input, "lo", "eth0")
	a.troubledBy(nodestate.TroubleNamesBlocked, blocked...)
	a.NoFirewall(firewall)
	a.whole()

	// A firewall that lets nothing reach the name server is not the only possible cause.
	a.Run("iptables", "-t", "mangle", "-A", "INPUT", "-p", "udp", "-d", "10.62.1.1", "-j", "DROP")
	a.troubledBy(nodestate.TroubleNamesBlocked, "neither instances nor this machine", "10.62.1.1:4953", "dns.log")
	a.Run("iptables", "-t", "mangle", "-F", "INPUT")
	a.whole()
	// Nothing is left of a removed node.
	a.remove()
	if links := a.Run("ip", "link"); strings.Contains(links, "rik") {
		t.Errorf("links after the removal:\n%s", links)
	}
}

// TestPrivilegedAFirewallBlocksInstances checks that nodes on one link, which need no tunnel,
// report that packets do not pass between their instances.
func TestPrivilegedAFirewallBlocksInstances(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	a, b, c, table := neighbors(t)
	// Blocked when it joins: it reports that from the start.
	c.Firewall(firewall, netnstest.Forward)
	a.start(table)
	b.start(table)
	a.whole()
	b.whole()
	c.start(table)
	c.troubled("not checked yet", "a (192.0.2.1)")
	nothing := []string{"no packet from instances", "a (192.0.2.1)", "b (192.0.2.2)", "10.62.0.0/16", "nftables", "firewall-cmd", "--network=vxlan"}
	c.troubled(nothing...)
	// A restart does not make it look healthy.
	c.stop()
	c.start(nil)
	c.troubled(nothing...)
	a.quiet()
	b.quiet()
	c.NoFirewall(firewall)
	c.whole()

	for _, closed := range []struct {
		name       string
		shut, open func()
		parts      []string
	}{
		{
			// Replies pass, so this node's own connections work.
			"connections of others", func() { c.Firewall(firewall, netnstest.Forward, "rik0") },
			func() { c.NoFirewall(firewall) }, nothing,
		},
		{
			"its own connections", func() { c.Firewall(firewall, netnstest.Forward, "eth0") },
			func() { c.NoFirewall(firewall) }, []string{"packets from instances of this node do not arrive", "a (192.0.2.1)", "10.62.0.0/16"},
		},
		{
			// As a network does that knows only the addresses of machines.
			"addresses of instances, on the way in", func() { rule(c.NS, "-A", "raw PREROUTING -i eth0 -s 10.62.0.0/16 -j DROP") },
			func() { rule(c.NS, "-D", "raw PREROUTING -i eth0 -s 10.62.0.0/16 -j DROP") }, nothing,
		},
		{
			"addresses of instances, on the way out", func() { rule(c.NS, "-A", "mangle POSTROUTING -o eth0 -s 10.62.0.0/16 -j DROP") },
			func() { rule(c.NS, "-D", "mangle POSTROUTING -o eth0 -s 10.62.0.0/16 -j DROP") }, []string{"packets from instances of this node do not arrive"},
		},
	} {
		closed.shut()
		c.troubled(closed.parts...)
		a.quiet()
		b.quiet()
		closed.open()
		c.whole()
	}

	// What the machines themselves receive does not matter to instances.
	for _, m := range []*machine{a, b, c} {
		m.Firewall(firewall, netnstest.Input, "lo", "rik0")
	}
	c.Firewall("second", netnstest.Forward)
	c.troubled(nothing...)
	c.NoFirewall("second")
	c.whole()
	a.quiet()
	b.quiet()
}

// TestPrivilegedAFirewallBlocksBehindTunnels checks the same of nodes whose tunnels work.
func TestPrivilegedAFirewallBlocksBehindTunnels(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	a, b, c, _, table := machines(t)
	for _, m := range []*machine{a, b, c} {
		m.start(table)
	}
	for _, m := range []*machine{a, b, c} {
		m.whole()
	}
	c.Firewall(firewall, netnstest.Forward)
	c.troubled("no packet from instances", "a (192.0.2.1)")
	a.quiet()
	b.quiet()
	c.NoFirewall(firewall)
	c.whole()
	// The cause is named once.
	rule(c.NS, "-A", "mangle INPUT"+tunnels)
	c.troubled("no packet of another node's overlay")
	eventually(t, "one cause", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if text := c.notified[nodestate.TroubleOverlay]; strings.Contains(text, "from instances") {
			return errors.New(text)
		}
		return nil
	})
	rule(c.NS, "-D", "mangle INPUT"+tunnels)
	c.whole()
}
