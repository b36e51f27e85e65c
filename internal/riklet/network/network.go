// Package network is a node's network, put together of its parts: the table of
// what the controller tells, the bridge that instances are connected to, the way
// to the instances of other nodes (overlay), the Node Proxy, and the names (dns).
//
// Each part says in a pure function what should be and makes it so. A Node has
// them do that whenever what they go by changes, and now and then besides, since
// others may change the kernel too. What it made stays when it ends: instances go
// on, and so does their network. [Purge] takes it away.
package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/riklet/network/iptables"
	"rik.dev/rik/internal/riklet/network/nameserver"
	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/riklet/network/proxy"
	"rik.dev/rik/internal/riklet/network/reach"
	"rik.dev/rik/internal/rpc/nodev1"
)

// ErrInUse says that another node has the network of this machine.
var ErrInUse = errors.New("another node of rik has this machine's network: stop it, give each its own network namespace, or run this one with --network=none")

const (
	// lockTimeout is for an agent that was replaced and is about to end.
	lockTimeout  = 5 * time.Second
	lockInterval = 50 * time.Millisecond
	// resolver is where every machine names its name servers.
	resolver = "/etc/resolv.conf"
)

// Config of a [Node].
type Config struct {
	// Node is the node's name. Required.
	Node string
	// Dir is the network's own directory; made if need be. Required.
	Dir string
	// Tunnels has everything go through tunnels, also to nodes on the same link:
	// some clouds drop what comes from addresses that they did not give.
	Tunnels bool
	// AllowFrom are ranges outside the cluster that may use the addresses of instances,
	// virtual addresses and names through this node. Others may not.
	AllowFrom []netip.Prefix
	// Resolver is the host's resolv.conf(5); the usual one when empty.
	Resolver string
	// NameServer is the command line of rik-dns, which answers names. Required by Open.
	NameServer []string
	// Interval and Silence are those of the overlay's check, see package reach; its own when zero.
	Interval, Silence time.Duration
	// Logger discards when nil.
	Logger *slog.Logger
}

// Node is the network of one node. Its methods are safe for concurrent use.
type Node struct {
	cfg    Config
	lock   *netLock
	table  *netmap.Table
	bridge *bridge.Bridge
	ports  *bridge.Switch
	proxy  *proxy.Proxy
	feed   *nameserver.Feed
	names  names
	// look has a token when the host may have changed, and rules when what the
	// proxy goes by did.
	look, rules chan struct{}
	news        chan struct{} // a token after troubles changed
	checker     *reach.Checker

	mu        sync.Mutex
	address   netip.Addr
	facts     proxy.Facts
	conflicts []proxy.Conflict
	troubles  map[nodestate.TroubleKind]string // but for ports
	lost      map[proxy.HostPort]bool
	ends      tunnelEnds
	ruled     bool  // the rules were brought in once
	unruled   error // why they could not be, the last time
	attempts  int   // that failed since they could
}

// unruledAttempts at bringing rules in fail before that is a trouble of the node. Another
// program may hold the lock of iptables for a while.
const unruledAttempts = 3

var _ instance.Network = (*Node)(nil)

// Open takes the network of this machine. Nothing is changed before Run. Close
// releases it.
func Open(ctx context.Context, cfg Config) (*Node, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Resolver == "" {
		cfg.Resolver = resolver
	}
	n := &Node{cfg: cfg, look: make(chan struct{}, 1), rules: make(chan struct{}, 1), news: make(chan struct{}, 1), facts: proxy.Facts{Node: cfg.Node}}
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// open does what may go wrong.
func (n *Node) open(ctx context.Context) error {
	if _, _, err := iptables.Find(ctx); err != nil {
		return fmt.Errorf("the node proxy cannot work here (--network=none does without): %w", err)
	}
	var err error
	if n.lock, err = lock(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(n.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("making the network's directory: %w", err)
	}
	n.trouble(nodestate.TroubleNetwork, errNotSetUp)
	n.checker = n.newChecker()
	n.table = netmap.Open(netmap.Config{Path: filepath.Join(n.cfg.Dir, "table"), Logger: n.cfg.Logger})
	n.feed = nameserver.NewFeed(n.table)
	n.names = names{cfg: n.cfg, lock: n.lock, feed: n.feed, look: n.look}
	if n.bridge, err = bridge.New(bridge.DefaultName); err != nil {
		return err
	}
	n.ports = bridge.NewSwitch(n.bridge, n.cfg.Logger)
	n.proxy, err = proxy.New(proxy.Config{
		Logger: n.cfg.Logger, Table: n.table.Snapshot, Facts: n.proxyFacts, Changed: n.rules, Conflicts: n.conflict, Applied: n.applied,
	})
	return err
}

// sleep is false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Close lets go of the network; it stays as it is. Run must have returned.
func (n *Node) Close() error {
	var errs []error
	if n.bridge != nil {
		errs = append(errs, n.bridge.Close())
	}
	if n.lock != nil {
		errs = append(errs, n.lock.release())
	}
	return errors.Join(errs...)
}

// Run keeps the network as it should be until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.table.Run(ctx) })
	group.Go(func() error { return n.proxy.Run(ctx) })
	group.Go(func() error { return n.checker.Run(ctx) })
	group.Go(func() error {
		n.watch(ctx)
		return nil
	})
	group.Go(func() error {
		n.converge(ctx, n.table.Subscribe())
		return nil
	})
	return group.Wait()
}

// Apply takes what the controller tells of the network.
func (n *Node) Apply(c *nodev1.NetworkChanges) { n.feed.Apply(c) }

// SetAddress says by which address other nodes reach this one; the invalid
// address while that is not known. It does not block.
func (n *Node) SetAddress(a netip.Addr) {
	n.mu.Lock()
	changed := n.address != a
	n.address = a
	n.mu.Unlock()
	if changed {
		notify(n.look)
	}
}

// SetListeners says at which ports the machine's own processes listen. It does not block.
func (n *Node) SetListeners(all []proxy.Listener) {
	n.mu.Lock()
	n.facts.Listeners = all
	n.mu.Unlock()
	notify(n.rules)
}

// conflict notes which ports both services and processes want.
func (n *Node) conflict(all []proxy.Conflict, lost map[proxy.HostPort]bool) {
	n.mu.Lock()
	n.conflicts, n.lost = all, lost
	n.mu.Unlock()
	notify(n.news)
	for _, c := range all {
		n.cfg.Logger.Warn("a process of this machine listens on a port of a workload",
			"protocol", c.Protocol, "port", c.Port, "workload", c.Service.String(), "served", c.Served)
	}
}

// Troubles say what of the network does not work, with messages.
func (n *Node) Troubles() map[nodestate.TroubleKind]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := maps.Clone(n.troubles)
	if all == nil {
		all = map[nodestate.TroubleKind]string{}
	}
	if _, notified := all[nodestate.TroubleNetwork]; !notified && n.attempts >= unruledAttempts {
		all[nodestate.TroubleNetwork] = "the rules of ports and names cannot be written: " + n.unruled.Error()
	}
	if len(n.conflicts) == 0 {
		return all
	}
	var texts []string
	for _, c := range n.conflicts {
		texts = append(texts, c.String())
	}
	all[nodestate.TroublePorts] = strings.Join(texts, "; ")
	return all
}

// errNotSetUp is the trouble of a node that has just begun.
var errNotSetUp = errors.New("the network of instances is not set up yet")

// trouble notes whether a part works.
func (n *Node) trouble(kind nodestate.TroubleKind, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.troubles[kind] == text {
		return
	}
	notify(n.news)
	if text == "" {
		delete(n.troubles, kind)
		return
	}
	if n.troubles == nil {
		n.troubles = map[nodestate.TroubleKind]string{}
	}
	n.troubles[kind] = text
}

// News is readable after Troubles changed.
func (n *Node) News() <-chan struct{} { return n.news }

// Lost says whether a workload has a port although a process of the machine listens on it.
func (n *Node) Lost(p proxy.HostPort) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lost[p]
}

// proxyFacts is what the proxy is to know of the node.
func (n *Node) proxyFacts() proxy.Facts {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.facts
}

// NameServer is where the node's name server listens: at the node's address among its
// instances. It is invalid before the name server runs.
func (n *Node) NameServer() netip.AddrPort { return n.names.at() }

// applied notes whether the rules could be brought in.
func (n *Node) applied(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.attempts >= unruledAttempts
	if n.unruled = err; err != nil {
		n.attempts++
	} else {
		n.ruled, n.attempts = true, 0
	}
	if before != (n.attempts >= unruledAttempts) {
		notify(n.news)
	}
}

// rulesReady says why instances must wait for the rules. Without them an instance would ask
// whoever has port 53 of the machine for names.
func (n *Node) rulesReady() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.ruled:
		return nil
	case n.unruled != nil:
		return fmt.Errorf("%w: the rules of ports and names cannot be written: %w", instance.ErrNetworkNotReady, n.unruled)
	default:
		return fmt.Errorf("%w: the rules of ports and names are not written yet", instance.ErrNetworkNotReady)
	}
}

// Ready implements instance.Network.
func (n *Node) Ready() error { return cmp.Or(n.ports.Ready(), n.rulesReady()) }

// Attach implements instance.Network.
func (n *Node) Attach(ctx context.Context, uid string, pid int) (instance.Attachment, error) {
	if err := n.rulesReady(); err != nil {
		return instance.Attachment{}, cmp.Or(n.ports.Ready(), err)
	}
	return n.ports.Attach(ctx, uid, pid)
}

// Detach implements instance.Network.
func (n *Node) Detach(ctx context.Context, uid string) error { return n.ports.Detach(ctx, uid) }

// Keep implements instance.Network.
func (n *Node) Keep(ctx context.Context, uids []string) error { return n.ports.Keep(ctx, uids) }

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
