package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"rik.dev/rik/internal/riklet/netns"
	"rik.dev/rik/internal/riklet/network/nameserver"
	"rik.dev/rik/internal/riklet/network/nameserver/server"
	"rik.dev/rik/internal/testkit/netnstest"
	"rik.dev/rik/internal/testkit/privileged"
)

// nameServerWord is the argument that makes this test binary the name server instead of running
// tests.
const nameServerWord = "name-server"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == nameServerWord {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := server.Run(ctx, os.Args[2:])
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 5 && os.Args[1] == nodeWord {
		if err := runNode(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// noNameServer ends the name server of this namespace, and removes the record of created tables, which
// a node that is not purged leaves.
func noNameServer(t *testing.T) {
	t.Helper()
	path, err := lockPath(lockDir)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		l := &netLock{path: path}
		err = errors.Join(nameserver.Remove(ctx, l.siblingPath("dns")), os.RemoveAll(l.siblingPath("tables")))
		_ = os.Remove(lockDir) // fails if other locks exist
	}
	if err != nil {
		t.Error(err)
	}
}

// nameServers returns the PIDs of the name servers in this network namespace.
func nameServers(t *testing.T) (pids []int) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		namespace, _ := os.Readlink(filepath.Join("/proc", e.Name(), "ns/net"))
		if namespace == own && strings.Contains(string(line), "\x00"+nameServerWord+"\x00") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// asking queries a name without a pause. stop fails the test if a query got no answer.
func asking(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		client := &dns.Client{Timeout: 30 * time.Second}
		for ctx.Err() == nil {
			reply, _, err := client.Exchange(new(dns.Msg).SetQuestion("web.default.rik.local.", dns.TypeA), "10.62.1.1:53")
			if err != nil || len(reply.Answer) != 1 {
				done <- fmt.Errorf("a question has no answer: %v, %w", reply, err)
				return
			}
		}
		done <- nil
	}()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Names are answered while the riklet restarts, is down, and is upgraded.
func TestPrivilegedNameServerSurvivesTheAgent(t *testing.T) {
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
	answers(t)
	first := nameServers(t)
	if len(first) != 1 {
		t.Fatalf("name servers: %v, want one", first)
	}

	stop := asking(t)
	r.stop()
	answers(t)
	r = open(t, dir)
	r.ready()
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	eventually(t, "the agent's return", func() error {
		if !r.NameServer().IsValid() {
			return errors.New("names are not served yet")
		}
		return nil
	})
	if now := nameServers(t); !slices.Equal(now, first) {
		t.Errorf("after a restart the name server is %v, want %v as before", now, first)
	}
	// The process gets changes again.
	more := whole()
	more.Services[0].Addresses = append(more.Services[0].Addresses, "10.63.0.8")
	stop()
	r.Apply(more)
	eventually(t, "a change", func() error { return has(t, "10.63.0.8") })
	r.Apply(whole())
	eventually(t, "a change back", func() error {
		if has(t, "10.63.0.8") == nil {
			return errors.New("the address is still there")
		}
		return nil
	})

	// Another program takes over the sockets.
	stop = asking(t)
	r.stop()
	program := filepath.Join(t.TempDir(), "rik-dns")
	replace(t, program)
	r = openWith(t, Config{Node: "n1", Dir: dir, NameServer: []string{program, nameServerWord}})
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	var second []int
	eventually(t, "another process", func() error {
		if second = nameServers(t); len(second) != 1 || slices.Equal(second, first) {
			return fmt.Errorf("name servers: %v, before: %v", second, first)
		}
		return nil
	})
	stop()

	// A process that ends is started again.
	if err := syscall.Kill(second[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another process", func() error {
		if now := nameServers(t); len(now) != 1 || slices.Equal(now, second) {
			return fmt.Errorf("name servers: %v, before: %v", now, second)
		}
		return nil
	})
	answers(t)
	r.stop()
	if err := Purge(t.Context(), Config{Node: "n1", Dir: dir}); err != nil {
		t.Error(err)
	}
	eventually(t, "its end", func() error {
		if left := nameServers(t); len(left) > 0 {
			return fmt.Errorf("name servers left: %v", left)
		}
		return nil
	})
}

// has returns nil if the name has an address.
func has(t *testing.T, address string) error {
	t.Helper()
	reply, err := dns.ExchangeContext(t.Context(), new(dns.Msg).SetQuestion("web.default.rik.local.", dns.TypeA), "10.62.1.1:53")
	if err == nil && !strings.Contains(reply.String(), address) {
		err = errors.New(reply.String())
	}
	return err
}

// replace copies this program to a path.
func replace(t *testing.T, path string) {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		t.Fatal(err)
	}
}

// foreign starts name servers that are not rik's at all addresses of the machine, by UDP and TCP.
// They deny every name.
func foreign(t *testing.T) {
	t.Helper()
	for _, l := range []struct{ network, address string }{{"udp4", "0.0.0.0:53"}, {"tcp4", "0.0.0.0:53"}, {"udp6", "[::]:53"}, {"tcp6", "[::]:53"}} {
		server := &dns.Server{Net: l.network, Addr: l.address, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeNameError))
		})}
		started, ended := make(chan struct{}), make(chan error, 1)
		server.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- server.ListenAndServe() }()
		select {
		case <-started:
		case err := <-ended:
			t.Fatalf("a name server at %s %s: %v", l.network, l.address, err)
		}
		t.Cleanup(func() {
			_ = server.Shutdown()
			<-ended
		})
	}
}

// askFrom queries a workload's name in the namespace of a process, by UDP always from the same
// port, and by TCP. It waits for an answer, and fails if the name is denied.
func askFrom(t *testing.T, pid int) {
	t.Helper()
	home, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	for _, client := range []*dns.Client{
		{Net: "udp", Timeout: time.Second, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{Port: 40053}, Timeout: time.Second}},
		{Net: "tcp", Timeout: time.Second},
	} {
		eventually(t, "a name by "+client.Net, func() error {
			var reply *dns.Msg
			err := netns.Within(home, func() (err error) {
				reply, _, err = client.Exchange(new(dns.Msg).SetQuestion("web.default.rik.local.", dns.TypeA), "10.62.1.1:53")
				return err
			})
			if err == nil && len(reply.Answer) != 1 {
				t.Fatalf("by %s a stranger answers:\n%s", client.Net, reply)
			}
			return err
		})
	}
}

// TestPrivilegedNameServersOfOthers checks that instances do not use a foreign server on port 53 of
// all addresses, whichever server started first. It also checks that such a server does not stop
// rik's server from answering.
func TestPrivilegedNameServersOfOthers(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	for _, when := range []string{"before", "after"} {
		t.Run(when, func(t *testing.T) {
			if when == "before" {
				lan(t, "192.0.2.1/24")
				foreign(t)
			}
			dir := filepath.Join(t.TempDir(), "network")
			r := open(t, dir)
			r.SetAddress(netip.MustParseAddr("192.0.2.1"))
			r.Apply(whole())
			r.ready()
			instance := sleeper(t)
			if _, err := r.Attach(t.Context(), "u7", instance); err != nil {
				t.Fatal(err)
			}
			if when == "after" {
				askFrom(t, instance)
				foreign(t)
			}
			askFrom(t, instance)
			askFrom(t, os.Getpid()) // as an instance in the node's own network
			eventually(t, "the end of troubles", func() error {
				if trouble := r.Troubles(); len(trouble) > 0 {
					return fmt.Errorf("troubles: %v, want none", trouble)
				}
				return nil
			})
			// Another program removes the redirection.
			sh(t, "iptables", "-t", "nat", "-F", "RIKLET")
			askFrom(t, instance)
			// The process ends, and is started again.
			for _, pid := range nameServers(t) {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			askFrom(t, instance)
			if err := r.Detach(t.Context(), "u7"); err != nil {
				t.Error(err)
			}
			r.stop()
			noNameServer(t)
		})
	}
}

// TestPrivilegedNamePortIsTaken checks that the name server then uses another port.
func TestPrivilegedNamePortIsTaken(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	lan(t, "192.0.2.1/24")
	taken, err := net.ListenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", nameserver.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := filepath.Join(t.TempDir(), "network")
	r := open(t, dir)
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	r.Apply(whole())
	r.ready()
	answers(t)
	at := r.NameServer()
	if at.Port() == nameserver.Port {
		t.Errorf("NameServer() = %s, want another port", at)
	}
	// A restart keeps it.
	r.stop()
	r = open(t, dir)
	r.SetAddress(netip.MustParseAddr("192.0.2.1"))
	r.ready()
	eventually(t, "the agent's return", func() error {
		if now := r.NameServer(); now != at {
			return fmt.Errorf("NameServer() = %s, want %s", now, at)
		}
		return nil
	})
	answers(t)
}
