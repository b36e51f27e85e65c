// Package servers knows the servers of the cluster, and chooses the one to which the node connects.
// The node gets the list from the server that it is connected to, and saves it. It then finds another
// server when that one has died, also after a restart.
package servers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/wakeup"
)

const (
	// maxServers bounds the list. etcd recommends at most seven members.
	maxServers = 64
	// again is how long the node stays with another server after the active one did not accept it.
	again = 3 * time.Second
)

// Address are the addresses of one server for nodes, as host:port.
type Address struct {
	Name    string `json:"name,omitempty"`
	Nodes   string `json:"nodes"`
	Workers string `json:"workers"`
}

// list is what the node saves.
type list struct {
	Revision int64     `json:"revision"`
	Servers  []Address `json:"servers"`
}

// Directory is the list of servers with the choice of one. Its methods are safe for concurrent use
// and do not block.
type Directory struct {
	file   string
	first  Address
	logger *slog.Logger
	now    func() time.Time

	mu      sync.Mutex
	list    list
	active  string
	current Address
	attempt int                  // since the last connection
	failed  map[string]time.Time // by name
	// move is set when the connection to the controller should go to another server. moved is set
	// when it does.
	move, moved wakeup.Signal
}

// Open reads the saved list. first is the configured server, which is tried too. A list that cannot
// be read is ignored, since the next connection replaces it.
func Open(file string, first Address, logger *slog.Logger) *Directory {
	d := &Directory{
		file: file, first: first, logger: logger, now: time.Now, current: first,
		failed: map[string]time.Time{}, move: wakeup.New(), moved: wakeup.New(),
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return d
	}
	var saved list
	if err == nil {
		err = json.Unmarshal(data, &saved)
	}
	if err == nil {
		err = validate(saved.Servers)
	}
	if err != nil {
		logger.Warn("ignoring the saved list of servers", "file", file, "err", err)
		return d
	}
	d.list = saved
	return d
}

func validate(servers []Address) error {
	if len(servers) > maxServers {
		return fmt.Errorf("the list has %d servers, and the limit is %d", len(servers), maxServers)
	}
	for _, s := range servers {
		for _, address := range []string{s.Nodes, s.Workers} {
			if _, _, err := net.SplitHostPort(address); err != nil {
				return fmt.Errorf("server %q: %w", s.Name, err)
			}
		}
	}
	return nil
}

// candidates returns the servers in the order in which to try them: the active one, the others, and
// the configured one.
func candidates(servers []Address, active string, first Address) []Address {
	out := slices.Clone(servers)
	slices.SortStableFunc(out, func(a, b Address) int {
		return cmp.Compare(rank(a, active, first), rank(b, active, first))
	})
	if !slices.ContainsFunc(out, func(a Address) bool { return a.Nodes == first.Nodes }) {
		out = append(out, first)
	}
	return out
}

func rank(a Address, active string, first Address) int {
	switch {
	case active != "" && a.Name == active:
		return 0
	case a.Nodes == first.Nodes:
		return 1
	}
	return 2
}

// Next chooses the server for the next connection to the controller.
func (d *Directory) Next() Address {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := candidates(d.list.Servers, d.active, d.first)
	next := all[d.attempt%len(all)]
	if next.Workers != d.current.Workers {
		d.moved.Wake()
	}
	if next.Nodes != d.current.Nodes {
		d.logger.Info("using another server", "server", next.Name, "address", next.Nodes)
	}
	d.current = next
	d.move.Clear()
	return next
}

// Current is the server to which the connection to the controller goes. The scheduler of the same
// server is used.
func (d *Directory) Current() Address {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

// Ended records the end of a connection to the controller. taken means that the server had accepted
// it.
func (d *Directory) Ended(taken bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if taken {
		d.attempt = 0
		return
	}
	d.attempt++
	d.failed[d.current.Name] = d.now()
}

// Move is readable when the connection to the controller should end, because another server is the
// active one. Moved is readable when the connection goes to another server.
func (d *Directory) Move() <-chan struct{} { return d.move }

// Moved is described at Move.
func (d *Directory) Moved() <-chan struct{} { return d.moved }

// Learn takes the list that the present server has sent.
func (d *Directory) Learn(m *nodev1.Servers) {
	next := list{Revision: m.GetRevision()}
	for _, s := range m.GetServers() {
		next.Servers = append(next.Servers, Address{Name: s.GetName(), Nodes: s.GetNodes(), Workers: s.GetWorkers()})
	}
	if err := validate(next.Servers); err != nil {
		d.logger.Warn("ignoring a list of servers", "err", err)
		return
	}
	d.mu.Lock()
	// A server that is behind may send an older list.
	changed := next.Revision >= d.list.Revision && !slices.Equal(next.Servers, d.list.Servers)
	if changed {
		d.list = next
	}
	d.active = m.GetActive()
	d.followLocked()
	d.mu.Unlock()
	if changed {
		d.save(next)
	}
}

// followLocked moves to the active server, unless it has just refused the node.
func (d *Directory) followLocked() {
	i := slices.IndexFunc(d.list.Servers, func(a Address) bool { return a.Name == d.active })
	if i < 0 || d.list.Servers[i].Nodes == d.current.Nodes {
		return
	}
	if wait := again - d.now().Sub(d.failed[d.active]); wait > 0 {
		time.AfterFunc(wait, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.followLocked()
		})
		return
	}
	d.attempt = 0
	d.move.Wake()
}

func (d *Directory) save(l list) {
	data, err := json.MarshalIndent(l, "", "  ")
	if err == nil {
		err = atomicfile.Write(d.file, append(data, '\n'))
	}
	if err != nil {
		d.logger.Warn("saving the list of servers failed", "err", err)
	}
}
