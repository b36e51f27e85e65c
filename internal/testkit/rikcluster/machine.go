package rikcluster

import (
	"errors"
	"fmt"
	"path/filepath"
)

// Machine is a node in its own place. Its riklet has its own directories and cgroup.
type Machine struct {
	*Place
	Name string

	c    *Cluster
	args []string
}

// AddMachine adds a machine to a cluster with the option Machines, and starts its riklet. args
// are added to its command line.
func (c *Cluster) AddMachine(args ...string) *Machine {
	c.tb.Helper()
	n := len(c.machines) + 1
	m := &Machine{
		Place: NewPlace(c.tb, fmt.Sprintf("%s-%d", filepath.Base(c.Dir), n), n),
		c:     c, Name: fmt.Sprintf("node-%d", n), args: args,
	}
	c.machines = append(c.machines, m)
	m.Start()
	return m
}

// Machine returns a machine by its number, from 1.
func (c *Cluster) Machine(n int) *Machine { return c.machines[n-1] }

// dirs returns flags that separate the machine's files and cgroups from those of the others.
func (m *Machine) dirs() []string {
	dir := filepath.Join(m.c.Dir, m.Name)
	return m.c.withVMM("--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run"),
		"--cgroup-parent", "/"+filepath.Base(m.c.Dir)+"-"+m.Name)
}

// Start starts the machine's riklet.
func (m *Machine) Start() {
	m.c.tb.Helper()
	args := append([]string{
		"--server", "https://" + ServerAddress + ":5000", "--token-file", m.c.TokenFile(), "--node-name", m.Name, "--node-address", m.Address,
		"--image-dir", filepath.Join(m.c.Dir, m.Name, "archives"), "--registries-dir", filepath.Join(m.c.Dir, "etc"),
	}, m.dirs()...)
	program, args := m.inside(filepath.Join(m.c.Bin, "riklet"), append(args, m.args...)...)
	m.c.processes[m.Name] = startProcess(m.c.tb, m.Name, filepath.Join(m.c.Dir, m.Name+".log"), program, args...)
}

// Riklet returns the machine's agent.
func (m *Machine) Riklet() *Process { return m.c.processes[m.Name] }

// remove removes everything that the riklet created, and the machine itself. It reports what the
// riklet left.
func (m *Machine) remove() error {
	out := m.Run(filepath.Join(m.c.Bin, "riklet"), append([]string{"purge"}, m.dirs()...)...)
	return errors.Join(out.Err, m.Place.remove())
}
