package rikcluster

import (
	"fmt"
	"path/filepath"
)

// firstServerPlace is the number of the place of the first additional server. Machines have the
// numbers from 1.
const firstServerPlace = 101

// Server is an additional server of a cluster, in its own place and without a node.
type Server struct {
	*Place
	Name    string
	DataDir string

	c *Cluster
}

// AddServer adds a place for a server to a cluster with the option Machines. Start starts the server.
func (c *Cluster) AddServer(name string) *Server {
	c.tb.Helper()
	n := firstServerPlace + len(c.servers)
	s := &Server{
		Place: NewPlace(c.tb, filepath.Base(c.Dir)+"-"+name, n), Name: name, DataDir: filepath.Join(c.Dir, name), c: c,
	}
	c.servers = append(c.servers, s)
	return s
}

// Start starts the server. args are added to its command line.
func (s *Server) Start(args ...string) *Process {
	s.c.tb.Helper()
	all := []string{"server", "--no-agent", "--data-dir", s.DataDir, "--bind-address", s.Address, "--advertise-address", s.Address, "--server-name", s.Name}
	program, all := s.inside(filepath.Join(s.c.Bin, "rik"), append(all, args...)...)
	p := startProcess(s.c.tb, s.Name, filepath.Join(s.c.Dir, s.Name+".log"), program, all...)
	s.c.processes[s.Name] = p
	return p
}

// TryRikctl runs rikctl as administrator with the configuration of this server.
func (s *Server) TryRikctl(args ...string) Result {
	return run([]string{"RIKCONFIG=" + filepath.Join(s.DataDir, "config.yaml")}, "", filepath.Join(s.c.Bin, "rikctl"), args...)
}

// Rikctl is TryRikctl, and fails the test on an error.
func (s *Server) Rikctl(args ...string) string {
	s.c.tb.Helper()
	out := s.TryRikctl(args...)
	if out.Err != nil {
		s.c.tb.Fatalf("rikctl at %s: %v", s.Name, out.Err)
	}
	return out.Stdout
}

// URL is the address of the server's API.
func (s *Server) URL() string { return fmt.Sprintf("https://%s:5000", s.Address) }
