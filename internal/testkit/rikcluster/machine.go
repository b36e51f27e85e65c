package rikcluster

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// The link that the machines share: a bridge in the network namespace of the
// tests, where the server and the outside are.
const (
	lan = "lan0"
	// ServerAddress is the server's on the link.
	ServerAddress = "10.99.0.1"
)

// Machine is a node in a network namespace of its own, joined to the server by
// the link. Its riklet has its own directories and cgroup.
type Machine struct {
	Name    string
	Address string // on the link

	c     *Cluster
	netns string // name of the namespace
	port  string // the end of its cable that is plugged into the link
	args  []string
}

// ip runs a command of iproute2 in the namespace of the tests.
func (c *Cluster) ip(args ...string) {
	c.tb.Helper()
	if out := run(nil, "", "ip", args...); out.Err != nil {
		c.tb.Fatalf("ip %s: %v", strings.Join(args, " "), out.Err)
	}
}

func (c *Cluster) makeLan() {
	c.tb.Helper()
	c.ip("link", "add", lan, "type", "bridge")
	c.tb.Cleanup(func() { run(nil, "", "ip", "link", "delete", lan) })
	c.ip("address", "add", ServerAddress+"/24", "dev", lan)
	c.ip("link", "set", lan, "up")
}

// AddMachine adds a machine to a cluster that has the option Machines, and starts
// its riklet. args are added to its command line.
func (c *Cluster) AddMachine(args ...string) *Machine {
	c.tb.Helper()
	n := len(c.machines) + 1
	m := &Machine{
		c: c, Name: fmt.Sprintf("node-%d", n), Address: fmt.Sprintf("10.99.0.%d", 10+n), args: args,
		netns: fmt.Sprintf("%s-%d", filepath.Base(c.Dir), n), port: fmt.Sprintf("port%d", n),
	}
	c.machines = append(c.machines, m)
	c.ip("netns", "add", m.netns)
	c.ip("link", "add", m.port, "type", "veth", "peer", "name", "eth0", "netns", m.netns)
	c.ip("link", "set", m.port, "master", lan, "up")
	for _, command := range []string{
		"link set lo up", "link set eth0 up", "address add " + m.Address + "/24 dev eth0", "route add default via " + ServerAddress,
	} {
		c.ip(append([]string{"-n", m.netns}, strings.Fields(command)...)...)
	}
	m.Start()
	return m
}

// Machine finds a machine by its number, from 1.
func (c *Cluster) Machine(n int) *Machine { return c.machines[n-1] }

// dirs keep the machine's files and cgroups apart from those of the others.
func (m *Machine) dirs() []string {
	dir := filepath.Join(m.c.Dir, m.Name)
	return m.c.withVMM("--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run"),
		"--cgroup-parent", "/"+filepath.Base(m.c.Dir)+"-"+m.Name)
}

// inside is the command line that runs a program in the machine's network. Only
// that is another: ip netns exec would hide the cgroups too.
func (m *Machine) inside(program string, args ...string) (nsenter string, all []string) {
	return "nsenter", append([]string{"--net=/run/netns/" + m.netns, "--", program}, args...)
}

// Start starts the machine's riklet.
func (m *Machine) Start() {
	m.c.tb.Helper()
	args := append([]string{
		"--server", "https://" + ServerAddress + ":5000", "--token-file", m.c.TokenFile(), "--node-name", m.Name, "--node-address", m.Address,
	}, m.dirs()...)
	program, args := m.inside(filepath.Join(m.c.Bin, "riklet"), append(args, m.args...)...)
	m.c.processes[m.Name] = startProcess(m.c.tb, m.Name, filepath.Join(m.c.Dir, m.Name+".log"), program, args...)
}

// Riklet is the machine's agent.
func (m *Machine) Riklet() *Process { return m.c.processes[m.Name] }

// Run runs a program in the machine's network.
func (m *Machine) Run(program string, args ...string) Result {
	program, args = m.inside(program, args...)
	return run(nil, "", program, args...)
}

// Unplug pulls the machine's cable.
func (m *Machine) Unplug() { m.c.tb.Helper(); m.c.ip("link", "set", m.port, "down") }

// Plug puts it back.
func (m *Machine) Plug() { m.c.tb.Helper(); m.c.ip("link", "set", m.port, "up") }

// remove takes everything away that the riklet made, and the machine itself. It
// says what the riklet left.
func (m *Machine) remove() error {
	out := m.Run(filepath.Join(m.c.Bin, "riklet"), append([]string{"purge"}, m.dirs()...)...)
	errs := []error{out.Err}
	for _, look := range [][]string{{"ip", "-o", "link"}, {"ip", "route"}, {"iptables-save"}} {
		left := m.Run(look[0], look[1:]...)
		for line := range strings.Lines(left.Stdout) {
			if strings.Contains(strings.ToLower(line), "rik") {
				errs = append(errs, fmt.Errorf("%s in the network of %s: %s", look[0], m.Name, strings.TrimSpace(line)))
			}
		}
	}
	errs = append(errs, run(nil, "", "ip", "netns", "delete", m.netns).Err)
	return errors.Join(errs...)
}
