package rikcluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// The link that places share: a bridge in the network namespace of the tests, which represents
// the outside.
const (
	lan = "lan0"
	// ServerAddress is the address of the outside on the link. A server with machines and
	// without its own place has it.
	ServerAddress = "10.99.0.1"
)

// Place is a network namespace with a cable to the link.
type Place struct {
	// Address on the link.
	Address string

	tb    testing.TB
	netns string // name of the namespace
	port  string // the end of its cable that is connected to the link
}

// MakeLan creates the link. A test with places calls it once.
func MakeLan(tb testing.TB) {
	tb.Helper()
	ip(tb, "link", "add", lan, "type", "bridge")
	tb.Cleanup(func() { run(nil, "", "ip", "link", "delete", lan) })
	ip(tb, "address", "add", ServerAddress+"/24", "dev", lan)
	ip(tb, "link", "set", lan, "up")
}

// NewPlace creates the n-th place on the link, from 1, with the address 10.99.0.10+n, for a
// cluster ([Options.Place]) that removes it. name is the name of the namespace, and must be
// unique on this machine.
func NewPlace(tb testing.TB, name string, n int) *Place {
	tb.Helper()
	p := &Place{tb: tb, Address: fmt.Sprintf("10.99.0.%d", 10+n), netns: name, port: fmt.Sprintf("port%d", n)}
	made := false
	defer func() {
		if !made { // the test fails, and has no reference to the place
			run(nil, "", "ip", "netns", "delete", p.netns)
		}
	}()
	ip(tb, "netns", "add", p.netns)
	ip(tb, "link", "add", p.port, "type", "veth", "peer", "name", "eth0", "netns", p.netns)
	ip(tb, "link", "set", p.port, "master", lan, "up")
	for _, command := range []string{
		"link set lo up", "link set eth0 up", "address add " + p.Address + "/24 dev eth0", "route add default via " + ServerAddress,
	} {
		ip(tb, append([]string{"-n", p.netns}, strings.Fields(command)...)...)
	}
	made = true
	return p
}

// ip runs a command of iproute2 in the namespace of the tests.
func ip(tb testing.TB, args ...string) {
	tb.Helper()
	if out := run(nil, "", "ip", args...); out.Err != nil {
		tb.Fatalf("ip %s: %v", strings.Join(args, " "), out.Err)
	}
}

// inside returns the command line that runs a program in the place's network. It changes only
// the network, because ip netns exec would also hide the cgroups. For a nil place it returns the
// program's own command line.
func (p *Place) inside(program string, args ...string) (first string, all []string) {
	if p == nil {
		return program, args
	}
	return "nsenter", append([]string{"--net=/run/netns/" + p.netns, "--", program}, args...)
}

// Run runs a program in the place's network.
func (p *Place) Run(program string, args ...string) Result {
	program, args = p.inside(program, args...)
	return run(nil, "", program, args...)
}

// Unplug disconnects the place's cable.
func (p *Place) Unplug() { p.tb.Helper(); ip(p.tb, "link", "set", p.port, "down") }

// Plug connects it again.
func (p *Place) Plug() { p.tb.Helper(); ip(p.tb, "link", "set", p.port, "up") }

// remove removes the place, and reports what rik left in its network.
func (p *Place) remove() error {
	var errs []error
	for _, look := range [][]string{{"ip", "-o", "link"}, {"ip", "route"}, {"iptables-save"}} {
		left := p.Run(look[0], look[1:]...)
		for line := range strings.Lines(left.Stdout) {
			if strings.Contains(strings.ToLower(line), "rik") {
				errs = append(errs, fmt.Errorf("%s in the network %s: %s", look[0], p.netns, strings.TrimSpace(line)))
			}
		}
	}
	errs = append(errs, run(nil, "", "ip", "netns", "delete", p.netns).Err)
	return errors.Join(errs...)
}
