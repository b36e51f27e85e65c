package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/riklet/network/overlay"
	"rik.dev/rik/internal/riklet/network/proxy"
)

const (
	// ruleChanges is how many single changes are measured; the median counts.
	ruleChanges = 15
	// maxGrowth limits the growth of the time from 1,000 to 10,000 exposed instances. Linear
	// growth would be ten, quadratic growth a hundred.
	maxGrowth = 40
)

// BenchmarkProxyRules measures how long the node proxy takes to write its rules to the kernel:
// all of them at first, and after a change of one instance. Instances are exposed on a node port
// and a cluster IP, each as a separate service or all behind one.
func BenchmarkProxyRules(b *testing.B) {
	begin(b)
	for _, variant := range []string{"nft", "legacy"} {
		for _, shape := range []string{"services", "replicas"} {
			b.Run(variant+"/"+shape, func(b *testing.B) {
				for range b.N {
					var before time.Duration
					for _, n := range []int{10, 1000, 10000} {
						whole := measureRules(b, variant, shape, n)
						if n > 1000 && whole > maxGrowth*before {
							b.Errorf("%d instances take %v, a tenth of them %v: more than %d times as long", n, whole, before, maxGrowth)
						}
						before = whole
					}
				}
			})
		}
	}
	b.Logf("load at the end: %s", load())
}

// measureRules writes the rules for n exposed instances, in an empty namespace.
func measureRules(b *testing.B, variant, shape string, n int) time.Duration {
	b.Helper()
	leave := enter(b, "iptables-"+variant)
	defer leave()
	s := exposed(shape, n)
	p, err := proxy.New(proxy.Config{
		Logger: slog.New(slog.DiscardHandler), Changed: make(chan struct{}),
		Netmap: func() *netmap.Snapshot { return s },
		Facts:  nodeFacts,
	})
	if err != nil {
		b.Fatal(err)
	}
	whole := timed(b, p)
	var changes, repeats []time.Duration
	for i := range ruleChanges {
		toggle(s, shape, i*n/ruleChanges)
		changes = append(changes, timed(b, p))
		repeats = append(repeats, timed(b, p))
	}
	rules := strings.Count(command(b, "iptables-"+variant+"-save"), "-A RIKLET")
	b.ReportMetric(milliseconds(whole), fmt.Sprintf("all-%d-ms", n))
	b.ReportMetric(milliseconds(percentile(changes, 50)), fmt.Sprintf("change-%d-ms", n))
	b.Logf("%s, %d instances as %s: %d rules in %v; a change of one %v, at most %v; no change %v", variant, n, shape, rules,
		whole.Round(time.Millisecond), percentile(changes, 50).Round(time.Millisecond/10),
		percentile(changes, 100).Round(time.Millisecond/10), percentile(repeats, 50).Round(time.Millisecond/10))
	if err := p.Remove(b.Context()); err != nil {
		b.Error(err)
	}
	return whole
}

// nodeFacts are those of a node in a cluster with an overlay, so that the proxy writes every kind
// of rule that a node has.
func nodeFacts() proxy.Facts {
	return proxy.Facts{
		Node: "a", PodCIDR: netip.MustParsePrefix("10.62.1.0/24"), Bridge: bridge.DefaultName,
		Ways: []string{overlay.Device}, TunnelPort: overlay.Port, NamePort: 4953,
	}
}

func timed(b *testing.B, p *proxy.Proxy) time.Duration {
	b.Helper()
	begun := time.Now()
	if err := p.Sync(context.WithoutCancel(b.Context())); err != nil {
		b.Fatal(err)
	}
	return time.Since(begun)
}

// enter moves the benchmark to a new namespace, where a foreign rule selects the variant of
// iptables.
func enter(b *testing.B, program string) (leave func()) {
	b.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		b.Fatal(err)
	}
	space, err := netns.New()
	if err != nil {
		b.Fatal(err)
	}
	command(b, program, "-A", "INPUT", "-s", "203.0.113.1/32", "-j", "DROP")
	return func() {
		if err := netns.Set(home); err != nil {
			b.Error(err) // the thread stays locked and ends with the benchmark
			return
		}
		_ = home.Close()
		_ = space.Close()
		runtime.UnlockOSThread()
	}
}

func command(b *testing.B, name string, args ...string) string {
	b.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		b.Fatalf("%s %v: %v", name, args, err)
	}
	return string(out)
}

// exposed returns a netmap with n instances, each with its own service or all behind one.
func exposed(shape string, n int) *netmap.Snapshot {
	s := &netmap.Snapshot{
		Settings:  netmap.Settings{ClusterCIDR: netip.MustParsePrefix("10.62.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.63.0.0/16"), Domain: "rik.local"},
		Services:  map[netmap.ServiceKey]netmap.Service{},
		Endpoints: map[netmap.ServiceKey]map[string]netmap.Endpoint{},
	}
	for i := range n {
		key, number := exposedAs(shape, i)
		ports := []netmap.Port{{Port: 20000 + uint16(number), TargetPort: 8080, Protocol: rikv1alpha1.ProtocolTCP, Type: rikv1alpha1.PortNodePort}}
		if _, ok := s.Services[key]; !ok {
			address := netip.AddrFrom4([4]byte{10, 63, byte(number >> 8), byte(number)})
			s.Services[key] = netmap.Service{Key: key, Addresses: []netip.Addr{address}, Ports: ports}
			s.Endpoints[key] = map[string]netmap.Endpoint{}
		}
		uid := fmt.Sprintf("uid-%d", i)
		at := netip.AddrFrom4([4]byte{10, 62, byte(2 + i/250), byte(2 + i%250)})
		s.Endpoints[key][uid] = netmap.Endpoint{UID: uid, Service: key, Node: "b", Address: at, Ready: true, Ports: ports}
	}
	return s
}

func exposedAs(shape string, i int) (netmap.ServiceKey, int) {
	if shape == "replicas" {
		i = 0
	}
	return netmap.ServiceKey{Namespace: namespace, Workload: fmt.Sprintf("w%d", i)}, i
}

// toggle changes whether an instance is ready.
func toggle(s *netmap.Snapshot, shape string, i int) {
	key, _ := exposedAs(shape, i)
	uid := fmt.Sprintf("uid-%d", i)
	e := s.Endpoints[key][uid]
	e.Ready = !e.Ready
	s.Endpoints[key][uid] = e
}
