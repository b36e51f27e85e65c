// Package reach checks that overlay packets pass between this node and others. A firewall that
// drops them causes no error: connections of instances just time out.
//
// A node sends requests to its neighbors on a ring of node names, through the tunnel device. A
// request is an ARP request, which the other node's kernel answers by itself. Thus the answer
// arrives even while the other riklet restarts, and firewalls see only tunnel packets. Instances
// can neither send nor answer these requests, because their ARP packets do not leave their
// bridge.
//
// Each request also contains whether its sender receives anything. If the nodes that do not
// answer report that they receive nothing, the path to them is blocked, and not the path to this
// node.
package reach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/wakeup"
)

// Peer is a node's end of the tunnels.
type Peer struct {
	Name  string
	Outer netip.Addr // destination of its tunnel packets
	Inner netip.Addr // address of the tunnel device itself
	// Bridge is the node's address among its instances.
	Bridge netip.Addr
	MAC    net.HardwareAddr
}

// View is the current input of the check: the nodes that can be queried.
type View struct {
	// Known is false before the overlay's state is known. Until then, an earlier result stays.
	Known bool
	// Device is the name of the tunnel device, or "" if there is none yet.
	Device string
	Self   Peer
	// Peers are the other ends, of nodes that can answer as far as the cluster knows.
	Peers []Peer
}

// Config configures a Checker. All fields except Logger, Interval and Silence are required.
type Config struct {
	// View returns the current view.
	View func() View
	// Notified is called with the new trouble when it has changed. "" means no trouble.
	Notified func(trouble string)
	// Path is the file with the last result, which survives a restart.
	Path string
	// Port is the UDP port of the tunnels, for messages.
	Port uint16
	// Interval and Silence default to the package's constants.
	Interval, Silence time.Duration
	// Logger may be nil, which discards logs.
	Logger *slog.Logger
}

// Checker sends requests and receives replies.
type Checker struct {
	cfg    Config
	memory memory
	socket *socket
	failed string // why there is no socket, as last logged

	view  View
	names map[string]string // of the view's peers, by MAC
	all   map[string]*seen
	came  arrivals
	wake  wakeup.Signal
}

// New returns a checker that starts with the result of an earlier one, and reports that result.
func New(cfg Config) *Checker {
	if cfg.Interval == 0 {
		cfg.Interval = Interval
	}
	if cfg.Silence == 0 {
		cfg.Silence = Silence
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Checker{cfg: cfg, all: map[string]*seen{}, wake: wakeup.New()}
	data, err := os.ReadFile(cfg.Path)
	if err == nil {
		err = json.Unmarshal(data, &c.memory)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		cfg.Logger.Warn("the last result of the overlay's check cannot be read; it is checked anew", "err", err)
	}
	if !c.memory.Checked && c.memory.Trouble == "" {
		c.memory.Trouble = unchecked
	}
	c.cfg.Notified(c.memory.Trouble)
	return c
}

// Look makes the checker read the view again at once. It does not block.
func (c *Checker) Look() {
	c.wake.Wake()
}

// Run checks until ctx ends.
func (c *Checker) Run(ctx context.Context) error {
	defer c.close()
	frames := make(chan frame, 64)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-frames:
			if f.from == c.socket && c.take(f.data, time.Now()) {
				c.conclude(time.Now())
			}
		case <-c.wake:
			timer.Reset(0)
		case <-timer.C:
			if c.look() && c.open(frames) {
				c.round(time.Now())
				c.conclude(time.Now())
			}
			timer.Reset(c.pause())
		}
	}
}

// pause returns the time to the next round. It is shorter while a node waits for an answer, and
// shortest before the first one.
func (c *Checker) pause() time.Duration {
	switch {
	case !c.memory.Checked:
		return c.cfg.Interval / 20
	case c.memory.Trouble != "":
		return c.cfg.Interval / 5
	default:
		return c.cfg.Interval
	}
}

// look reads the view. It returns false if nothing is known yet.
func (c *Checker) look() bool {
	c.view, c.names = c.cfg.View(), map[string]string{}
	for _, p := range c.view.Peers {
		c.names[string(p.MAC)] = p.Name
	}
	return c.view.Known
}

// round sends a request to each neighbor.
func (c *Checker) round(now time.Time) {
	asked := map[string]*seen{}
	for _, p := range chosen(c.view) {
		s := c.all[p.Name]
		if s == nil {
			s = &seen{since: now}
		}
		asked[p.Name] = s
		// Report that earlier than other nodes need it for their verdict.
		deaf := c.came.last.IsZero() || now.Sub(c.came.last) >= c.cfg.Silence/2
		// Old kernels treat the tunnel device's own address as a broadcast address.
		for _, target := range []netip.Addr{p.Inner, p.Bridge} {
			if err := c.socket.send(question(c.view.Self, p, target, deaf)); err != nil {
				c.cfg.Logger.Debug("a node cannot be asked", "node", p.Name, "err", err)
				break
			}
		}
	}
	c.all = asked
}

// chosen returns the neighbors among the peers of a view.
func chosen(v View) []Peer {
	names := make([]string, len(v.Peers))
	for i, p := range v.Peers {
		names[i] = p.Name
	}
	names = neighbors(v.Self.Name, names)
	return slices.DeleteFunc(slices.Clone(v.Peers), func(p Peer) bool { return !slices.Contains(names, p.Name) })
}

// take records a received frame, and reports whether it may change the verdict.
func (c *Checker) take(data []byte, now time.Time) bool {
	h, ok := read(data, c.view.Self)
	if !ok {
		return false
	}
	name, known := c.names[string(h.from)]
	if !known {
		return false
	}
	c.came.add(now, c.cfg.Silence)
	s := c.all[name]
	switch {
	case s == nil:
		return false
	case h.answer:
		s.answered = now
		return c.memory != memory{Checked: true}
	case h.deaf:
		s.deaf = now
	}
	return false
}

// conclude computes the verdict, and reports and saves it if it is new.
func (c *Checker) conclude(now time.Time) {
	s := validate(c.all, c.came, now, c.cfg.Silence)
	var asked []Peer
	for _, p := range chosen(c.view) {
		if c.all[p.Name] != nil {
			asked = append(asked, p)
		}
	}
	next := c.memory.next(s, describe(s, c.cfg.Port, asked))
	if next == c.memory {
		return
	}
	if next.Trouble != c.memory.Trouble {
		c.cfg.Logger.Info("the overlay was checked", "state", s, "trouble", next.Trouble)
		c.cfg.Notified(next.Trouble)
	}
	c.memory = next
	if err := c.save(); err != nil {
		c.cfg.Logger.Warn("the result of the overlay's check is not kept", "err", err)
	}
}

func (c *Checker) save() error {
	data, err := json.Marshal(c.memory)
	if err != nil {
		return err
	}
	return atomicfile.Write(c.cfg.Path, data)
}

// open opens a socket on the view's device if there are peers. Without a socket, the last result
// stays.
func (c *Checker) open(frames chan<- frame) bool {
	if len(c.view.Peers) == 0 {
		c.close()
		return true
	}
	link, err := net.InterfaceByName(c.view.Device)
	if err == nil && c.socket != nil && c.socket.index == link.Index {
		return true
	}
	c.close()
	if err == nil {
		c.socket, err = open(link.Index, frames)
	}
	if err == nil {
		c.failed = ""
		return true
	}
	if text := err.Error(); text != c.failed {
		c.failed = text
		c.cfg.Logger.Warn("the overlay cannot be checked", "err", fmt.Errorf("listening at %s: %w", c.view.Device, err))
	}
	return false
}

func (c *Checker) close() {
	if c.socket != nil {
		c.socket.close()
		c.socket = nil
	}
}
