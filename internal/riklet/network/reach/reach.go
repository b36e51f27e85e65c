// Package reach checks that packets pass: between this node and others, and from instances to
// the node's name server. A firewall that drops them causes no error: connections of instances
// just time out.
//
// A Checker sends requests to the node's neighbors on a ring of node names. There are two kinds of
// checks:
//
//   - New sends ARP requests through the tunnel device. The other node's kernel answers them by
//     itself. Thus the answer arrives even while the other riklet restarts, and firewalls see only
//     tunnel packets. Instances can neither send nor answer these requests, because their ARP
//     packets do not leave their bridge.
//   - NewBetweenInstances sends datagrams between the check ports of the nodes (see package
//     bridge). These take the path of packets between instances: the routes, what both nodes
//     forward, and the network between them. The other riklet answers. The check does not show that
//     other ports, TCP, large packets or virtual addresses pass, nor that packets pass to nodes
//     that this one does not ask.
//
// Each request also contains whether its sender receives anything. If the nodes that do not answer
// report that they receive nothing, the path to them is blocked, and not the path to this node.
//
// Names sends DNS queries from the check port to the name server.
package reach

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"rik.dev/rik/internal/wakeup"
)

// Peer is a node, and its end of the tunnels.
type Peer struct {
	Name  string
	Outer netip.Addr // the address at which the node is reached
	Inner netip.Addr // address of the tunnel device itself
	// Bridge is the node's address among its instances.
	Bridge netip.Addr
	MAC    net.HardwareAddr
	// Check is the address of its check port.
	Check netip.Addr
}

// View is the current input of the check: the nodes that can be queried.
type View struct {
	// Known is false before the overlay's state is known. Until then, an earlier result stays.
	Known bool
	// Unable is true if the check cannot work on this node.
	Unable bool
	// Device is the name of the tunnel device, or "" if there is none yet. Only New needs it.
	Device string
	// Namespace is the network namespace of the check port. Only NewBetweenInstances needs it.
	Namespace *os.File
	// Cluster is the range of all instances, for messages.
	Cluster netip.Prefix
	Self    Peer
	// Peers are the nodes to ask, which can answer as far as the cluster knows.
	Peers []Peer
	// Others are nodes that may ask this node, although it does not ask them.
	Others []Peer
}

// Config configures a Checker. All fields except Logger, Interval and Silence are required.
type Config struct {
	// View returns the current view.
	View func() View
	// Notified is called with the new trouble when it has changed. "" means no trouble.
	Notified func(trouble string)
	// Path is the file with the last result, which survives a restart.
	Path string
	// Port is the UDP port of the tunnels, for messages of New.
	Port uint16
	// Interval and Silence default to the package's constants.
	Interval, Silence time.Duration
	// Logger may be nil, which discards logs.
	Logger *slog.Logger
}

// Checker sends requests and receives replies.
type Checker struct {
	cfg    Config
	kind   kind
	memory memory
	way    way    // nil if there is none
	failed string // why there is no way, as last logged

	view   View
	names  map[string]string // of the view's peers, by what kind.key returns
	others map[string]bool   // the same of the nodes that are not asked
	all    map[string]*seen
	came   arrivals
	wake   wakeup.Signal
}

// kind is what differs between the checks.
type kind struct {
	open     func(v View, frames chan<- frame) (way, error)
	key      func(Peer) string
	describe func(s state, v View, asked []Peer) string
}

// way is how requests and answers travel.
type way interface {
	// matches reports whether it still fits the view.
	matches(v View) bool
	// ask sends a request to a node.
	ask(v View, to Peer, receivesNothing bool) error
	// read parses a frame.
	read(v View, f frame) (arrival, bool)
	// answer answers a request, unless the kernel has done that.
	answer(a arrival) error
	// close ends it, and returns when no more frames arrive.
	close()
}

// frame is what a way received.
type frame struct {
	from   way
	data   []byte
	source netip.AddrPort // of a datagram
}

// arrival is a request or an answer that was received.
type arrival struct {
	from            string // what kind.key returns for the sender
	source          netip.Addr
	number          uint64
	answer          bool
	receivesNothing bool
}

// New returns a checker of tunnels that starts with the result of an earlier one, and reports that
// result.
func New(cfg Config) *Checker {
	return newChecker(cfg, kind{
		open: openARP, key: func(p Peer) string { return string(p.MAC) },
		describe: func(s state, _ View, asked []Peer) string { return describe(s, cfg.Port, asked) },
	})
}

// NewBetweenInstances returns a checker of packets between instances that starts with the result
// of an earlier one, and reports that result.
func NewBetweenInstances(cfg Config) *Checker {
	return newChecker(cfg, kind{open: openDatagrams, key: func(p Peer) string { return p.Check.String() }, describe: describeInstances})
}

func newChecker(cfg Config, k kind) *Checker {
	cfg.Interval = cmp.Or(cfg.Interval, Interval)
	cfg.Silence = cmp.Or(cfg.Silence, Silence)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	c := &Checker{cfg: cfg, kind: k, all: map[string]*seen{}, wake: wakeup.New()}
	c.memory = remembered(cfg.Path, unchecked, cfg.Logger)
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
			if c.way != nil && f.from == c.way && c.take(f, time.Now()) {
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
	c.view, c.names, c.others = c.cfg.View(), map[string]string{}, map[string]bool{}
	for _, p := range c.view.Peers {
		c.names[c.kind.key(p)] = p.Name
	}
	for _, p := range c.view.Others {
		c.others[c.kind.key(p)] = true
	}
	if c.view.Unable && c.memory.Trouble == unchecked {
		c.memory.Trouble = ""
		c.cfg.Notified("")
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
		// Send that earlier than other nodes need it for their result.
		receivesNothing := c.came.last.IsZero() || now.Sub(c.came.last) >= c.cfg.Silence/2
		if err := c.way.ask(c.view, p, receivesNothing); err != nil {
			c.cfg.Logger.Debug("cannot send a check to a node", "node", p.Name, "err", err)
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

// take records a received frame, and reports whether it may change the result.
func (c *Checker) take(f frame, now time.Time) bool {
	a, ok := c.way.read(c.view, f)
	if !ok {
		return false
	}
	name, known := c.names[a.from]
	if !known && !c.others[a.from] {
		return false
	}
	if !a.answer {
		if err := c.way.answer(a); err != nil {
			c.cfg.Logger.Debug("cannot answer the check of a node", "from", a.source, "err", err)
		}
	}
	// Other nodes may use another path, which says nothing about the one that is checked.
	if !known {
		return false
	}
	c.came.add(now, c.cfg.Silence)
	s := c.all[name]
	switch {
	case s == nil:
		return false
	case a.answer:
		s.answered = now
		return c.memory != memory{Checked: true}
	case a.receivesNothing:
		s.receivesNothing = now
	}
	return false
}

// conclude computes the result, and reports and saves it if it is new.
func (c *Checker) conclude(now time.Time) {
	s := validate(c.all, c.came, now, c.cfg.Silence)
	var asked []Peer
	for _, p := range chosen(c.view) {
		if c.all[p.Name] != nil {
			asked = append(asked, p)
		}
	}
	next := c.memory.next(s, c.kind.describe(s, c.view, asked))
	if next == c.memory {
		return
	}
	if next.Trouble != c.memory.Trouble {
		c.cfg.Logger.Info("checked the overlay", "state", s, "trouble", next.Trouble)
		c.cfg.Notified(next.Trouble)
	}
	c.memory = next
	c.memory.save(c.cfg.Path, c.cfg.Logger)
}

// open opens the way if there are nodes to ask or to answer. Without a way, the last result
// stays.
func (c *Checker) open(frames chan<- frame) bool {
	if len(c.view.Peers)+len(c.view.Others) == 0 {
		c.close()
		return true
	}
	if c.way != nil && c.way.matches(c.view) {
		return true
	}
	c.close()
	w, err := c.kind.open(c.view, frames)
	if err == nil {
		c.way, c.failed = w, ""
		return true
	}
	if text := err.Error(); text != c.failed {
		c.failed = text
		c.cfg.Logger.Warn("cannot check the overlay", "err", err)
	}
	return false
}

func (c *Checker) close() {
	if c.way != nil {
		c.way.close()
		c.way = nil
	}
}
