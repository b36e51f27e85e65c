package network

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/testkit/netnstest"
	"rik.dev/rik/internal/testkit/privileged"
)

// nodeWord is the argument that makes this test binary a node's network, with a name, an address
// and a directory. It reads changes of the netmap, one per line, and writes the node's troubles.
const nodeWord = "node"

func runNode(name, address, dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n, err := Open(ctx, Config{
		Node: name, Dir: dir, NameServer: []string{"/proc/self/exe", nameServerWord}, Interval: 200 * time.Millisecond, Silence: 4 * time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	n.SetAddress(netip.MustParseAddr(address))
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	go func() {
		for range n.News() {
			_ = json.NewEncoder(os.Stdout).Encode(n.Troubles())
		}
	}()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		changes := &nodev1.NetworkChanges{}
		if err := protojson.Unmarshal(lines.Bytes(), changes); err != nil {
			return err
		}
		n.Apply(changes)
	}
	cancel()
	return errors.Join(<-done, n.Close())
}

// machine is a network namespace with a node.
type machine struct {
	*netnstest.NS
	t                  *testing.T
	name, address, dir string

	stdin    io.WriteCloser
	ended    chan struct{}
	mu       sync.Mutex
	notified map[nodestate.TroubleKind]string // nil: nothing yet
	ever     bool                             // there was an overlay trouble since the last check
}

func (m *machine) start(table *nodev1.NetworkChanges) {
	m.t.Helper()
	c := exec.Command("/proc/self/exe", nodeWord, m.name, m.address, m.dir)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := c.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	m.Do(func() { err = c.Start() })
	if err != nil {
		m.t.Fatal(err)
	}
	m.stdin, m.ended, m.notified = stdin, make(chan struct{}), nil
	go func() {
		defer close(m.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			notified := map[nodestate.TroubleKind]string{}
			if err := json.Unmarshal(lines.Bytes(), &notified); err != nil {
				m.t.Error(err)
			}
			m.mu.Lock()
			m.notified, m.ever = notified, m.ever || notified[nodestate.TroubleOverlay] != ""
			m.mu.Unlock()
		}
		if err := c.Wait(); err != nil {
			m.t.Errorf("node %s: %v", m.name, err)
		}
	}()
	if table != nil {
		m.apply(table)
	}
}

func (m *machine) apply(changes *nodev1.NetworkChanges) {
	m.t.Helper()
	text, err := protojson.Marshal(changes)
	if err == nil {
		_, err = fmt.Fprintf(m.stdin, "%s\n", strings.ReplaceAll(string(text), "\n", " "))
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) stop() {
	if m.stdin != nil {
		_ = m.stdin.Close()
		<-m.ended
		m.stdin = nil
	}
}

// whole waits until the node has no trouble.
func (m *machine) whole() {
	m.t.Helper()
	eventually(m.t, "the end of troubles of "+m.name, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.notified == nil || len(m.notified) > 0 {
			return fmt.Errorf("troubles: %v", m.notified)
		}
		m.ever = false
		return nil
	})
}

// troubled waits until the node has an overlay trouble whose message contains the parts.
func (m *machine) troubled(parts ...string) {
	m.t.Helper()
	m.troubledBy(nodestate.TroubleOverlay, parts...)
}

// troubledBy waits until the node has a trouble of a kind whose message contains the parts.
func (m *machine) troubledBy(kind nodestate.TroubleKind, parts ...string) {
	m.t.Helper()
	eventually(m.t, "the trouble of "+m.name, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, part := range parts {
			if !strings.Contains(m.notified[kind], part) {
				return fmt.Errorf("no %q in troubles: %v", part, m.notified)
			}
		}
		return nil
	})
}

// quiet fails if the node had an overlay trouble since whole.
func (m *machine) quiet() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ever {
		m.t.Errorf("node %s had a trouble: %v", m.name, m.notified)
	}
}

// machines returns three nodes on separate links, with a router between them.
func machines(t *testing.T) (a, b, c *machine, router *netnstest.NS, table *nodev1.NetworkChanges) {
	t.Helper()
	router = netnstest.New(t)
	all, table := nodes(t, func(i int, m *machine) {
		m.address = fmt.Sprintf("192.0.2.%d", 16*i+1)
		netnstest.Cable(router, "to-"+m.name, m.NS, "eth0")
		router.Address("to-"+m.name, fmt.Sprintf("192.0.2.%d/28", 16*i+2))
		m.Address("eth0", m.address+"/28")
		m.Run("ip", "route", "add", "default", "via", fmt.Sprintf("192.0.2.%d", 16*i+2))
	})
	router.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
	return all[0], all[1], all[2], router, table
}

// neighbors returns three nodes on one link.
func neighbors(t *testing.T) (a, b, c *machine, table *nodev1.NetworkChanges) {
	t.Helper()
	link := netnstest.New(t)
	link.Run("ip", "link", "add", "switch", "type", "bridge")
	link.Up("switch")
	all, table := nodes(t, func(i int, m *machine) {
		m.address = fmt.Sprintf("192.0.2.%d", i+1)
		netnstest.Cable(link, "to-"+m.name, m.NS, "eth0")
		link.Run("ip", "link", "set", "to-"+m.name, "master", "switch")
		m.Address("eth0", m.address+"/24")
	})
	return all[0], all[1], all[2], table
}

// nodes returns three nodes, each with its own machine, and their netmap. connect connects a
// machine to the others and sets its address.
func nodes(t *testing.T, connect func(i int, m *machine)) (all []*machine, table *nodev1.NetworkChanges) {
	t.Helper()
	dir := t.TempDir()
	table = &nodev1.NetworkChanges{
		Begin: true, Complete: true,
		Settings: &nodev1.NetworkSettings{ClusterCidr: "10.62.0.0/16", ServiceCidr: "10.63.0.0/16", Domain: "rik.local"},
	}
	for i, name := range []string{"a", "b", "c"} {
		m := &machine{NS: netnstest.New(t), t: t, name: name, dir: filepath.Join(dir, name)}
		connect(i, m)
		table.Peers = append(table.Peers, &nodev1.Peer{Name: name, Address: m.address, PodCidr: fmt.Sprintf("10.62.%d.0/24", i+1), Answers: true})
		t.Cleanup(func() { m.remove() })
		all = append(all, m)
	}
	return all, table
}

// remove stops the node and removes its network.
func (m *machine) remove() {
	m.stop()
	m.Do(func() {
		if err := Purge(context.Background(), Config{Node: m.name, Dir: m.dir}); err != nil {
			m.t.Error(err)
		}
	})
}

// rule adds or removes a rule.
func rule(ns *netnstest.NS, how, rule string) {
	ns.Run("iptables", append([]string{"-t", strings.Fields(rule)[0], how}, strings.Fields(rule)[1:]...)...)
}

const tunnels = " -p udp --dport 8472 -j DROP"

// TestPrivilegedOverlayIsChecked checks that a node whose tunnel packets are dropped reports that
// with the cause, and that the nodes which it does not answer do not.
func TestPrivilegedOverlayIsChecked(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	a, b, c, router, table := machines(t)
	// Blocked when it joins: it reports that from the start.
	rule(c.NS, "-A", "mangle INPUT"+tunnels)
	a.start(table)
	b.start(table)
	a.whole()
	b.whole()
	c.start(table)
	c.troubled("not checked yet", "a (192.0.2.1)")
	c.troubled("no packet", "accept UDP port 8472", "a (192.0.2.1)", "b (192.0.2.17)")
	// A restart does not make it look healthy.
	c.stop()
	c.start(nil)
	c.troubled("no packet")
	a.quiet()
	b.quiet()
	rule(c.NS, "-D", "mangle INPUT"+tunnels)
	c.whole()

	for _, closed := range []struct {
		name, rule string
		ns         *netnstest.NS
		parts      []string
	}{
		{"on the way in", "filter FORWARD -d 192.0.2.33" + tunnels, router, []string{"no packet", "accept UDP port 8472", "a (192.0.2.1)"}},
		{"on the way out", "mangle OUTPUT" + tunnels, c.NS, []string{"this node's do not arrive at a (192.0.2.1)", "let UDP port 8472 out", "a (192.0.2.1)"}},
		{"before the rules", "raw PREROUTING" + tunnels, c.NS, []string{"no packet", "accept UDP port 8472"}},
	} {
		rule(closed.ns, "-A", closed.rule)
		c.troubled(closed.parts...)
		a.quiet()
		b.quiet()
		rule(closed.ns, "-D", closed.rule)
		c.whole()
	}

	// Occasional packet loss is no trouble.
	half := "filter FORWARD -m statistic --mode random --probability 0.3" + tunnels
	rule(router, "-A", half)
	// A removed node does not answer, and causes no trouble.
	rule(router, "-A", "filter FORWARD -d 192.0.2.17 -j DROP")
	gone := &nodev1.NetworkChanges{Peers: []*nodev1.Peer{table.Peers[1]}}
	gone.Peers[0].Answers = false
	a.apply(gone)
	c.apply(gone)
	b.stop()
	for range 2 { // the other variant of iptables, without the riklet's rules
		c.Run("iptables-legacy", "-P", "INPUT", "DROP")
		c.troubled("no packet", "accept UDP port 8472", "a (192.0.2.1)")
		// The node that receives the other's queries has no trouble.
		a.quiet()
		c.Run("iptables-legacy", "-P", "INPUT", "ACCEPT")
		c.whole()
	}
	// If two nodes cannot reach each other, both report that.
	rule(router, "-A", "filter FORWARD"+tunnels)
	a.troubled("no packet", "c (192.0.2.33)")
	c.troubled("no packet", "a (192.0.2.1)")
	// The last node has no other node to query.
	alone := &nodev1.NetworkChanges{Peers: []*nodev1.Peer{table.Peers[2]}}
	alone.Peers[0].Answers = false
	a.apply(alone)
	a.whole()
}
