package riklet

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/instance/instancefake"
	"rik.dev/rik/internal/riklet/network/proxy"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// notedNetwork is a network that records its calls.
type notedNetwork struct {
	instance.Network
	mu       sync.Mutex
	address  netip.Addr
	ports    []proxy.Listener
	reported []string
	ran      bool
	closed   bool
}

func (n *notedNetwork) Run(ctx context.Context) error {
	n.mu.Lock()
	n.ran = true
	n.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (n *notedNetwork) Apply(c *nodev1.NetworkChanges) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range c.GetPeers() {
		n.reported = append(n.reported, p.GetName())
	}
}

func (n *notedNetwork) SetAddress(a netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.address = a
}

func (n *notedNetwork) Troubles() map[nodestate.TroubleKind]string {
	return map[nodestate.TroubleKind]string{nodestate.TroubleNames: "port 53 is taken"}
}

func (n *notedNetwork) News() <-chan struct{} { return nil }

func (n *notedNetwork) Lost(proxy.HostPort) bool { return false }

func (n *notedNetwork) SetListeners(ports []proxy.Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports = ports
}

func (n *notedNetwork) NameServer() netip.AddrPort { return netip.MustParseAddrPort("10.62.1.1:4953") }

func (n *notedNetwork) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	return nil
}

func TestANodeWithANetwork(t *testing.T) {
	t.Parallel()
	held, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	number := netip.MustParseAddrPort(held.Addr().String()).Port()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.scheduler.up()
		b.controller.up()
		network := &notedNetwork{}
		var given instance.Network
		cfg := b.config()
		cfg.InternalAddress = "192.0.2.1"
		cfg.Network = func(h Host) (Network, error) {
			if h.NodeName != "n1" || h.StateDir == "" || h.Network != nil {
				t.Errorf("the network is made for %+v", h)
			}
			return network, nil
		}
		cfg.Driver.Make = func(h Host) (instance.Driver, error) {
			given = h.Network
			return b.host.Driver(instancefake.Config{Changed: h.Changed}), nil
		}
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		<-r.Ready()
		// A port that the kernel chose is reported after it was seen twice.
		time.Sleep(3 * lookInterval)
		synctest.Wait()
		b.cluster.report(t, "n7")
		b.cluster.locked(func() {
			if b.cluster.registers[0].GetNoNetwork() {
				t.Error("registered as a node without a network")
			}
		})
		if !slices.ContainsFunc(b.cluster.used(), func(p *schedulerv1.UsedPort) bool {
			return p.GetProtocol() == "TCP" && p.GetPort() == int32(number) && p.GetHostNetworkOnly()
		}) {
			t.Errorf("the scheduler received %v, want TCP %d among them", b.cluster.used(), number)
		}
		if all := b.cluster.lastTroubles(); len(all) != 1 || all[0].GetKind() != "names" || all[0].GetMessage() != "port 53 is taken" {
			t.Errorf("the scheduler received the troubles %v", all)
		}
		network.mu.Lock()
		if given != network || !network.ran || network.address != netip.MustParseAddr("192.0.2.1") || strings.Join(network.reported, " ") != "n7" ||
			!slices.ContainsFunc(network.ports, func(l proxy.Listener) bool { return l.Port == number && l.Loopback }) {
			t.Errorf("the network is %+v", network)
		}
		network.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil || !network.closed {
			t.Errorf("Close() = %v, of the network %t", err, network.closed)
		}
		b.scheduler.down()
		b.controller.down()
	})
}

// TestAnotherAddressIsRegistered checks that a node registers again after a change of its
// address. The connection of a node in its server's process does not break when the address
// disappears.
func TestAnotherAddressIsRegistered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.scheduler.up()
		b.controller.up()
		b.boot()
		<-b.riklet.Ready()
		synctest.Wait()
		now := b.riklet.facts().Info.InternalAddress
		former := b.riklet.facts().DeepCopy()
		former.Info.InternalAddress = "198.51.100.9"
		b.riklet.mu.Lock()
		b.riklet.status = former
		b.riklet.mu.Unlock()
		time.Sleep(2 * lookInterval)
		synctest.Wait()
		b.cluster.locked(func() {
			if len(b.cluster.registers) != 2 {
				t.Fatalf("registered %d times, want again with the other address", len(b.cluster.registers))
			}
			status := &rikv1alpha1.NodeStatus{}
			if err := status.Unmarshal(b.cluster.registers[1].GetStatus()); err != nil || status.Info.InternalAddress != now {
				t.Errorf("registered again with the address %q (%v), want %q", status.Info.InternalAddress, err, now)
			}
		})
		b.stop()
		b.scheduler.down()
		b.controller.down()
	})
}

// report sends changes of the network to the node.
func (c *cluster) report(t *testing.T, peer string) {
	t.Helper()
	c.mu.Lock()
	node := c.node
	c.mu.Unlock()
	changes := &nodev1.NetworkChanges{Peers: []*nodev1.Peer{{Name: peer}}}
	if err := node.Send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Network{Network: changes}}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// lastTroubles returns the troubles that the node last reported.
func (c *cluster) lastTroubles() []*schedulerv1.NodeTrouble {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.troubles
}

// used returns the ports that the node last reported.
func (c *cluster) used() []*schedulerv1.UsedPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ports
}
