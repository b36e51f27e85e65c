package bench

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/riklet/network/proxy"
)

const (
	// clients send requests in parallel, each request over a new connection, because only the
	// first packet of a connection passes the rules.
	clients = 4
	// roundRequests is the number of requests to one side before the other side's turn.
	roundRequests = 500
	rounds        = 6
)

// BenchmarkProxyRequests measures requests from one instance to another on the same node,
// through the cluster IP and directly, in turn. It does so with few other services exposed, and
// with many.
func BenchmarkProxyRequests(b *testing.B) {
	begin(b)
	for _, n := range []int{10, 10000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			for range b.N {
				measureRequests(b, n)
			}
		})
	}
	b.Logf("load at the end: %s", load())
}

func measureRequests(b *testing.B, n int) {
	b.Helper()
	leave := enter(b, "iptables-nft")
	defer leave()
	client, server := wire(b)
	defer func() { _ = client.Close(); _ = server.Close() }()
	s := exposed("services", n)
	last, _ := exposedAs("services", n-1)
	ends := s.Endpoints[last]
	for uid, e := range ends {
		e.Node, e.Address = "a", netip.MustParseAddr("10.62.1.3")
		ends[uid] = e
	}
	p, err := proxy.New(proxy.Config{
		Logger: slog.New(slog.DiscardHandler), Changed: make(chan struct{}),
		Netmap: func() *netmap.Snapshot { return s },
		Facts:  nodeFacts,
	})
	if err != nil {
		b.Fatal(err)
	}
	timed(b, p)
	answerAll(b, server)
	port := s.Services[last].Ports[0].Port
	sides := []struct {
		name, address string
		all           []time.Duration
		spent         time.Duration
	}{
		{name: "direct", address: "10.62.1.3:8080"},
		{name: "proxy", address: netip.AddrPortFrom(s.Services[last].Addresses[0], port).String()},
	}
	for range rounds {
		for i := range sides {
			begun := time.Now()
			sides[i].all = append(sides[i].all, request(b, client, sides[i].address)...)
			sides[i].spent += time.Since(begun)
		}
	}
	for _, side := range sides {
		rate := float64(len(side.all)) / side.spent.Seconds()
		b.ReportMetric(rate, side.name+"-requests/s")
		b.ReportMetric(milliseconds(percentile(side.all, 50)), side.name+"-p50-ms")
		b.ReportMetric(milliseconds(percentile(side.all, 99)), side.name+"-p99-ms")
	}
	if err := p.Remove(b.Context()); err != nil {
		b.Error(err)
	}
}

// wire creates two instances on the bridge of a node, which is the namespace of the calling
// thread.
func wire(b *testing.B) (client, server netns.NsHandle) {
	b.Helper()
	node, err := netns.Get()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = node.Close() }()
	command(b, "ip", "link", "set", "lo", "up")
	command(b, "ip", "link", "add", "rik0", "up", "type", "bridge")
	command(b, "ip", "addr", "add", "10.62.1.1/24", "dev", "rik0")
	for _, path := range []string{"ipv4/ip_forward", "bridge/bridge-nf-call-iptables"} {
		if err := os.WriteFile("/proc/sys/net/"+path, []byte("1"), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	made := []netns.NsHandle{-1, -1}
	for i, name := range []string{"client", "server"} {
		if made[i], err = netns.New(); err != nil {
			b.Fatal(err)
		}
		if err := netns.Set(node); err != nil {
			b.Fatal(err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(made[i])}); err != nil {
			b.Fatal(err)
		}
		command(b, "ip", "link", "set", name, "master", "rik0", "up")
		if err := netns.Set(made[i]); err != nil {
			b.Fatal(err)
		}
		command(b, "ip", "addr", "add", fmt.Sprintf("10.62.1.%d/24", 2+i), "dev", "eth0")
		command(b, "ip", "link", "set", "eth0", "up")
		command(b, "ip", "route", "add", "default", "via", "10.62.1.1")
		if err := netns.Set(node); err != nil {
			b.Fatal(err)
		}
	}
	return made[0], made[1]
}

// within runs f on a thread in a namespace, and ends that thread.
func within(space netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, because the thread must not be used again
		if err := netns.Set(space); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// answerAll answers every connection with one byte, until the benchmark ends.
func answerAll(b *testing.B, space netns.NsHandle) {
	b.Helper()
	var listener net.Listener
	if err := within(space, func() (err error) {
		listener, err = net.Listen("tcp4", "10.62.1.3:8080")
		return err
	}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.CopyN(conn, conn, 1)
				_ = conn.Close()
			}()
		}
	}()
}

// request sends all requests from parallel clients, and returns the time of each.
func request(b *testing.B, space netns.NsHandle, address string) []time.Duration {
	b.Helper()
	took := make([][]time.Duration, clients)
	var group errgroup.Group
	for i := range clients {
		group.Go(func() error {
			return within(space, func() error {
				for range roundRequests / clients {
					begun := time.Now()
					if err := once(address); err != nil {
						return err
					}
					took[i] = append(took[i], time.Since(begun))
				}
				return nil
			})
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	var all []time.Duration
	for _, some := range took {
		all = append(all, some...)
	}
	return all
}

func once(address string) error {
	conn, err := net.DialTimeout("tcp4", address, time.Minute)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("?")); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}
