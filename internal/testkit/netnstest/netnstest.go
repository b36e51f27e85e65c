// Package netnstest creates network namespaces for privileged tests, so that their changes to
// the kernel's network affect nothing else.
package netnstest

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// NS is a network namespace. The end of the test removes it with everything in it.
type NS struct {
	tb     testing.TB
	handle netns.NsHandle
}

// New creates a namespace with only its loopback, which is up.
func New(tb testing.TB) *NS {
	tb.Helper()
	n := &NS{tb: tb, handle: netns.None()}
	tb.Cleanup(func() {
		if n.handle.IsOpen() {
			_ = n.handle.Close()
		}
	})
	back := enter(tb)
	defer back()
	var err error
	if n.handle, err = netns.New(); err != nil {
		tb.Fatalf("making a network namespace: %v", err)
	}
	n.Up("lo")
	return n
}

// enter locks the goroutine to its thread until back has returned the thread to its namespace.
func enter(tb testing.TB) (back func()) {
	tb.Helper()
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		tb.Fatalf("opening the test's network namespace: %v", err)
	}
	return func() {
		// A thread that cannot return stays locked, and ends with its goroutine.
		if err := netns.Set(own); err != nil {
			tb.Errorf("leaving a network namespace: %v", err)
		} else {
			runtime.UnlockOSThread()
		}
		_ = own.Close()
	}
}

// Do calls f with its goroutine in the namespace. Sockets, commands and netlink requests that f
// itself creates use the namespace. Goroutines that f starts do not.
func (n *NS) Do(f func()) {
	n.tb.Helper()
	back := enter(n.tb)
	defer back()
	if err := netns.Set(n.handle); err != nil {
		n.tb.Fatalf("entering a network namespace: %v", err)
	}
	f()
}

// Run runs a program in the namespace and returns its output.
func (n *NS) Run(name string, arguments ...string) string {
	n.tb.Helper()
	var out []byte
	var err error
	n.Do(func() { out, err = exec.CommandContext(n.tb.Context(), name, arguments...).CombinedOutput() })
	if err != nil {
		n.tb.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

// Up brings a link up.
func (n *NS) Up(name string) {
	n.tb.Helper()
	n.Do(func() {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			n.tb.Fatalf("setting %s up: %v", name, err)
		}
	})
}

// Address adds an address such as 192.0.2.1/24 to a link.
func (n *NS) Address(name, address string) {
	n.tb.Helper()
	n.Do(func() {
		link, err := netlink.LinkByName(name)
		if err != nil {
			n.tb.Fatalf("finding %s: %v", name, err)
		}
		parsed, err := netlink.ParseAddr(address)
		if err == nil {
			err = netlink.AddrAdd(link, parsed)
		}
		if err != nil {
			n.tb.Fatalf("giving %s the address %s: %v", name, address, err)
		}
	})
}

// Dummy creates an unconnected link with an address, and brings it up. It is a bridge without
// ports, because not every kernel supports "ip link add type dummy".
func (n *NS) Dummy(name, address string) {
	n.tb.Helper()
	n.Do(func() {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = name
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
			n.tb.Fatalf("making %s: %v", name, err)
		}
	})
	n.Address(name, address)
	n.Up(name)
}

// Cable connects two namespaces: each gets a link of the given name, and both are up.
func Cable(a *NS, nameA string, b *NS, nameB string) {
	a.tb.Helper()
	a.Do(func() {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = nameA
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: nameB, PeerNamespace: netlink.NsFd(b.handle)}); err != nil {
			a.tb.Fatalf("joining %s and %s: %v", nameA, nameB, err)
		}
	})
	a.Up(nameA)
	b.Up(nameB)
}
