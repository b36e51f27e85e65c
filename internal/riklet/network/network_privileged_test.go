package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/riklet/network/overlay"
	"rik.dev/rik/internal/riklet/network/proxy"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/testkit/netnstest"
	"rik.dev/rik/internal/testkit/privileged"
)

// running is a Node and a function that ends its Run.
type running struct {
	*Node
	t    *testing.T
	stop func()
}

// open runs a node's network in this process's namespace.
func open(t *testing.T, dir string) *running {
	t.Helper()
	return openWith(t, Config{Node: "n1", Dir: dir})
}

func openWith(t *testing.T, cfg Config) *running {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	if cfg.NameServer == nil {
		cfg.NameServer = []string{"/proc/self/exe", nameServerWord}
	}
	t.Cleanup(func() { noNameServer(t) })
	n, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	r := &running{Node: n, t: t}
	r.stop = func() {
		cancel()
		if err := errors.Join(<-done, n.Close()); err != nil {
			t.Error(err)
		}
		r.stop = func() {}
	}
	t.Cleanup(func() { r.stop() })
	return r
}

// eventually polls until f returns nil.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func sh(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

// lan creates the host's own link. No name server is on it.
func lan(t *testing.T, address string) {
	t.Helper()
	sh(t, "ip", "link", "add", "lan0", "type", "bridge")
	sh(t, "ip", "link", "set", "lan0", "up")
	sh(t, "ip", "address", "add", address, "dev", "lan0")
	for _, table := range []string{"nat", "filter"} { // iptables never removes them
		sh(t, "iptables", "-t", table, "-N", "x")
		sh(t, "iptables", "-t", table, "-X", "x")
	}
}

// counters change with every packet.
var counters = regexp.MustCompile(`\[\d+:\d+\]|(?m)^#.*$`)

// state is everything that a node may change and must remove again. It does not contain the check
// port, which exists while the node runs.
func state(t *testing.T) string {
	t.Helper()
	// With the device numbers, so that removed and recreated devices count as different.
	links := slices.Sorted(strings.Lines(sh(t, "ip", "-o", "-4", "address")))
	for line := range strings.Lines(sh(t, "ip", "-o", "link")) {
		if strings.Contains(line, bridge.CheckDevice()) {
			continue
		}
		links = append(links, strings.Join(strings.Fields(line)[:2], " ")+"\n")
	}
	return strings.Join(links, "") + sh(t, "ip", "-4", "route", "show", "table", "all") +
		counters.ReplaceAllString(sh(t, "iptables-save"), "")
}

func whole() *nodev1.NetworkChanges {
	key := &nodev1.ServiceKey{Namespace: "default", Workload: "web"}
	ports := []*nodev1.ServicePort{{Name: "http", Port: 80, TargetPort: 8080, Protocol: "TCP", Type: "clusterIP"}}
	return &nodev1.NetworkChanges{
		Begin: true, Complete: true,
		Settings: &nodev1.NetworkSettings{ClusterCidr: "10.62.0.0/16", ServiceCidr: "10.63.0.0/16", Domain: "rik.local"},
		Peers: []*nodev1.Peer{
			{Name: "n1", Address: "192.0.2.1", PodCidr: "10.62.1.0/24"}, {Name: "n2", Address: "192.0.2.2", PodCidr: "10.62.2.0/24"},
			{Name: "n3", Address: "198.51.100.3", PodCidr: "10.62.3.0/24"},
		},
		Services:  []*nodev1.Service{{Key: key, Addresses: []string{"10.63.0.7"}, Ports: ports}},
		Endpoints: []*nodev1.Endpoint{{Uid: "u1", Service: key, Name: "web-1", Node: "n2", Address: "10.62.2.9", Ready: true, Ports: ports}},
	}
}

// contains waits until the output of a program contains want.
func contains(t *testing.T, want, name string, arguments ...string) {
	t.Helper()
	eventually(t, name+" "+strings.Join(arguments, " "), func() error {
		out, err := exec.CommandContext(t.Context(), name, arguments...).CombinedOutput()
		if err == nil && strings.Contains(string(out), want) {
			return nil
		}
		return errors.Join(err, errors.New("no "+want+" in:\n"+string(out)))
	})
}

// sleeper starts a process in its own network namespace.
func sleeper(t *testing.T) int {
	t.Helper()
	c := exec.Command("sleep", "600")
	// Another process group: on Ctrl-C the test still needs the namespace.
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c.Process.Pid
}

func (r *running) ready() {
	r.t.Helper()
	eventually(r.t, "the network", r.Ready)
}

func TestPrivilegedTheWholeNetwork(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	lan(t, "192.0.2.1/24")
	dir := filepath.Join(t.TempDir(), "network")
	before := state(t)
	r := open(t, dir)
	if err := r.Ready(); !errors.Is(err, instance.ErrNetworkNotReady) {
		t.Errorf("Ready() of a node without settings = %v", err)
	}
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	r.Apply(whole())
	r.ready()
	contains(t, "10.62.1.1/24", "ip", "address", "show", "rik0")
	contains(t, "10.62.2.0/24 via 192.0.2.2 dev lan0", "ip", "route")
	contains(t, "10.62.3.0/24 via 10.62.3.0 dev rik.1", "ip", "route")
	contains(t, "-A RIKLET", "iptables-save")
	answers(t)
	if got := r.NameServer(); got != netip.MustParseAddrPort("10.62.1.1:4953") {
		t.Errorf("NameServer() = %s", got)
	}
	if _, err := r.Attach(t.Context(), "u7", sleeper(t)); err != nil {
		t.Fatal(err)
	}
	// State that other programs remove is restored.
	sh(t, "ip", "link", "delete", overlay.Device)
	contains(t, "10.62.3.0/24 via 10.62.3.0 dev rik.1", "ip", "route")
	sh(t, "ip", "link", "delete", "rik0")
	contains(t, "10.62.1.1/24", "ip", "address", "show", "rik0")
	answers(t)
	// A node is removed.
	gone := whole()
	gone.Peers = gone.Peers[:2]
	r.Apply(gone)
	eventually(t, "the way to a node that is gone", func() error {
		if routes := sh(t, "ip", "route"); strings.Contains(routes, "10.62.3.0") {
			return errors.New(routes)
		}
		if rules := sh(t, "iptables-save"); strings.Contains(rules, "198.51.100.3") {
			return errors.New(rules)
		}
		return nil
	})
	// Everything survives the riklet, except the check port. The next one needs no controller.
	contains(t, bridge.CheckDevice(), "ip", "link")
	r.stop()
	if links := sh(t, "ip", "link"); strings.Contains(links, bridge.CheckDevice()) {
		t.Errorf("links after the end of the riklet, with its check port:\n%s", links)
	}
	left := state(t)
	r = open(t, dir)
	r.ready()
	if err := r.Keep(t.Context(), []string{"u7"}); err != nil {
		t.Error(err)
	}
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	answers(t)
	contains(t, "10.62.2.0/24 via 192.0.2.2 dev lan0", "ip", "route")
	eventually(t, "the state after a restart", func() error {
		if now := state(t); now != left {
			return errors.New("(-left +now)\n" + cmp.Diff(left, now))
		}
		return nil
	})
	if err := r.Detach(t.Context(), "u7"); err != nil {
		t.Error(err)
	}
	r.stop()
	for range 2 {
		if err := Purge(t.Context(), Config{Node: "n1", Dir: dir}); err != nil {
			t.Error(err)
		}
	}
	if after := state(t); after != before {
		t.Errorf("after the purge (-before +after):\n%s", cmp.Diff(before, after))
	}
}

// answers waits until names are answered at the bridge.
func answers(t *testing.T) {
	t.Helper()
	eventually(t, "the name of a workload", func() error {
		client := &dns.Client{Timeout: 5 * time.Second}
		reply, _, err := client.ExchangeContext(t.Context(), new(dns.Msg).SetQuestion("web.default.rik.local.", dns.TypeA), "10.62.1.1:53")
		if err == nil && (len(reply.Answer) != 1 || !strings.HasSuffix(reply.Answer[0].String(), "10.63.0.7")) {
			err = errors.New(reply.String())
		}
		return err
	})
}

func TestPrivilegedOverlapIsReported(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	lan(t, "192.0.2.1/24")
	sh(t, "ip", "address", "add", "10.62.77.1/24", "dev", "lan0")
	before := state(t)
	r := open(t, filepath.Join(t.TempDir(), "network"))
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	r.Apply(whole())
	eventually(t, "the overlap", func() error {
		err := r.Ready()
		if err == nil || !errors.Is(err, instance.ErrNetworkNotReady) {
			return errors.New("no overlap")
		}
		for _, want := range []string{"10.62.0.0/16", "10.62.77.1/24", "lan0", "--cluster-cidr"} {
			if !strings.Contains(err.Error(), want) {
				return err
			}
		}
		return nil
	})
	if _, err := r.Attach(t.Context(), "u1", sleeper(t)); !errors.Is(err, instance.ErrNetworkNotReady) {
		t.Errorf("Attach() = %v", err)
	}
	if now := state(t); now != before {
		t.Errorf("an overlap (-before +now):\n%s", cmp.Diff(before, now))
	}
	// The cause disappears, and the network works without a restart.
	sh(t, "ip", "address", "del", "10.62.77.1/24", "dev", "lan0")
	r.ready()
}

// TestPrivilegedVPNIsNoOverlap checks that a less specific route through a gateway, as a VPN adds,
// is no overlap.
func TestPrivilegedVPNIsNoOverlap(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	lan(t, "192.0.2.1/24")
	sh(t, "ip", "route", "add", "10.0.0.0/8", "via", "192.0.2.254")
	sh(t, "ip", "route", "add", "unreachable", "10.60.0.0/14")
	r := open(t, filepath.Join(t.TempDir(), "network"))
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	r.Apply(whole())
	r.ready()
	contains(t, "-A RIKLET", "iptables-save")
	contains(t, "via 192.0.2.2", "ip", "route", "get", "10.62.2.9")
}

// TestPrivilegedOverlapRemovesNothing checks that, if the network cannot be set up any more,
// connected instances keep their ports and names, and new ones wait.
func TestPrivilegedOverlapRemovesNothing(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	lan(t, "192.0.2.1/24")
	dir := filepath.Join(t.TempDir(), "network")
	r := open(t, dir)
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	r.Apply(whole())
	r.ready()
	contains(t, "10.62.2.9:8080", "iptables-save")
	answers(t)
	r.stop()
	left := counters.ReplaceAllString(sh(t, "iptables-save"), "")

	sh(t, "ip", "address", "add", "10.62.77.1/24", "dev", "lan0")
	r = open(t, dir)
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	answers(t)
	if err := r.Ready(); !errors.Is(err, instance.ErrNetworkNotReady) {
		t.Errorf("Ready() with an overlap = %v", err)
	}
	if now := counters.ReplaceAllString(sh(t, "iptables-save"), ""); now != left {
		t.Errorf("rules after a restart with an overlap (-left +now):\n%s", cmp.Diff(left, now))
	}
	// Ports still follow the instances.
	moved := whole()
	moved.Endpoints[0].Address = "10.62.2.10"
	r.Apply(moved)
	contains(t, "10.62.2.10:8080", "iptables-save")
	r.stop()

	// Without the bridge, no service can be reached. The rules still stay.
	left = counters.ReplaceAllString(sh(t, "iptables-save"), "")
	sh(t, "ip", "link", "delete", "rik0")
	r = open(t, dir)
	eventually(t, "the overlap", func() error {
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "10.62.77.1") {
			return errors.Join(errors.New("no overlap"), err)
		}
		return nil
	})
	r.stop()
	if now := counters.ReplaceAllString(sh(t, "iptables-save"), ""); now != left {
		t.Errorf("rules without a bridge (-left +now):\n%s", cmp.Diff(left, now))
	}
}

// TestPrivilegedTroublesAreReported checks the reports of a network that overlaps with the host, a
// name server that cannot be started, and a workload's port that a process has.
func TestPrivilegedTroublesAreReported(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	lan(t, "192.0.2.1/24")
	program := filepath.Join(t.TempDir(), "rik-dns")
	r := openWith(t, Config{Node: "n1", Dir: filepath.Join(t.TempDir(), "network"), NameServer: []string{program, nameServerWord}})
	notified := func(want map[nodestate.TroubleKind]string) {
		t.Helper()
		eventually(t, "the troubles", func() error {
			got := r.Troubles()
			if len(got) != len(want) {
				return fmt.Errorf("got %v, want %v", got, want)
			}
			for kind, part := range want {
				if !strings.Contains(got[kind], part) {
					return fmt.Errorf("got %v, want %v", got, want)
				}
			}
			return nil
		})
	}
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	all := whole()
	ports := []*nodev1.ServicePort{{Port: 30080, TargetPort: 8080, Protocol: "TCP", Type: "nodePort"}}
	all.Services[0].Ports, all.Endpoints[0].Ports = ports, ports
	r.Apply(all)
	notified(map[nodestate.TroubleKind]string{nodestate.TroubleNames: program})
	r.SetListeners([]proxy.Listener{{HostPort: proxy.HostPort{Protocol: "TCP", Port: 30080}, Privileged: true}})
	notified(map[nodestate.TroubleKind]string{nodestate.TroubleNames: program, nodestate.TroublePorts: "TCP 30080 of default/web"})
	replace(t, program)
	r.SetListeners(nil)
	r.look.Wake()
	notified(nil)
	sh(t, "ip", "address", "add", "10.62.77.1/24", "dev", "lan0")
	notified(map[nodestate.TroubleKind]string{nodestate.TroubleNetwork: "10.62.77.1/24"})
}

func TestPrivilegedEverythingThroughTunnels(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	lan(t, "192.0.2.1/24")
	r := openWith(t, Config{Node: "n1", Dir: filepath.Join(t.TempDir(), "network"), Tunnels: true})
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	r.Apply(whole())
	contains(t, "10.62.2.0/24 via 10.62.2.0 dev rik.1", "ip", "route")
	// The node's address changes. Its tunnels start at the new address.
	sh(t, "ip", "address", "add", "192.0.2.99/24", "dev", "lan0")
	r.SetAddress(netip.MustParseAddr("192.0.2.99"))
	contains(t, "local 192.0.2.99", "ip", "-d", "link", "show", overlay.Device)
	contains(t, "10.62.2.0/24 via 10.62.2.0 dev rik.1", "ip", "route")
}

func TestPrivilegedOneNodeForEachNetwork(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	// Any local user can bind abstract sockets. They must not block a node.
	taken, err := net.Listen("unix", "@rik.dev/network")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := filepath.Join(t.TempDir(), "network")
	r := open(t, dir)
	refused(t, "a second node", func(ctx context.Context) error {
		_, err := Open(ctx, Config{Node: "n2", Dir: dir + "2"})
		return err
	})
	// A node without a network of its own must not purge another node's network.
	if err := Purge(t.Context(), Config{Node: "n3", Dir: dir + "3"}); err != nil {
		t.Error(err)
	}
	refused(t, "purging what is in use", func(ctx context.Context) error { return Purge(ctx, Config{Node: "n1", Dir: dir}) })
	r.stop()
	open(t, dir).stop()
}

// refused checks that an operation on a network in use waits until its timeout, and then returns
// ErrInUse. On a busy machine a short timeout may pass before the wait starts.
func refused(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	var err error
	for _, timeout := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		err = do(ctx)
		cancel()
		if errors.Is(err, ErrInUse) {
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	t.Errorf("%s: %v", what, err)
}
