// Package network is the network of a node. It combines the netmap from the controller, the
// bridge for instances, the overlay to instances on other nodes, the node proxy, and the name
// server (dns).
//
// Each part computes the desired state in a pure function and then applies it. A Node runs the
// parts whenever their input changes, and at regular intervals, since other programs may change
// the kernel's state too. The kernel's state stays when a Node ends: instances keep running and
// keep their network. [Purge] removes it.
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
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/wakeup"
)

// ErrInUse is returned if another node uses the network of this machine.
var ErrInUse = errors.New("another riklet uses the network of this machine: stop it, run each riklet in its own network namespace, or start this one with --network=none")

const (
	// lockTimeout is long enough for a riklet that was replaced and is about to end.
	lockTimeout  = 5 * time.Second
	lockInterval = 50 * time.Millisecond
	// resolver is the usual path of resolv.conf(5).
	resolver = "/etc/resolv.conf"
)

// Config configures a [Node].
type Config struct {
	// Node is the node's name. Required.
	Node string
	// Dir is the network's own directory. It is created if necessary. Required.
	Dir string
	// Tunnels sends all traffic to other nodes through tunnels, also to nodes on the same link.
	// Some clouds drop packets with source addresses that they did not assign.
	Tunnels bool
	// AllowFrom are ranges outside the cluster that may reach instances, virtual addresses and
	// the name server through this node. Others may not.
	AllowFrom []netip.Prefix
	// Resolver is the path of the host's resolv.conf(5). Empty means the usual path.
	Resolver string
	// NameServer is the command line of rik-dns, which answers DNS queries. Required by Open.
	NameServer []string
	// Interval and Silence configure the check of the overlay, see package reach. 0 means its
	// defaults.
	Interval, Silence time.Duration
	// Logger may be nil, which discards logs.
	Logger *slog.Logger
}

// Node is the network of one node. Its methods are safe for concurrent use.
type Node struct {
	cfg    Config
	lock   *netLock
	table  *netmap.Store
	bridge *bridge.Bridge
	ports  *bridge.Switch
	proxy  *proxy.Proxy
	feed   *nameserver.Feed
	names  names
	// look is set when the host may have changed. rules is set when the input of the
	// proxy has changed.
	look, rules wakeup.Signal
	news        wakeup.Signal // set after the troubles have changed
	checks      checks

	mu         sync.Mutex
	address    netip.Addr
	facts      proxy.Facts
	conflicts  []proxy.Conflict
	troubles   map[nodestate.TroubleKind]string // without the ports
	lost       map[proxy.HostPort]bool
	known      known
	checked    map[check]string // the troubles that checks have found
	ruled      bool             // the rules were applied at least once
	rulesError error            // why the last attempt to apply the rules failed
	attempts   int              // failed attempts since the last success
}

// maxRulesAttempts is the number of failed attempts to apply the rules after which that counts as
// a trouble. Another program may hold the lock of iptables for a while.
const maxRulesAttempts = 3

var _ instance.Network = (*Node)(nil)

// Open acquires the network of this machine. Nothing changes before Run. Close releases the
// network.
func Open(ctx context.Context, cfg Config) (*Node, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Resolver = cmp.Or(cfg.Resolver, resolver)
	n := &Node{cfg: cfg, look: wakeup.New(), rules: wakeup.New(), news: wakeup.New(), facts: proxy.Facts{Node: cfg.Node}}
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// open does the parts of Open that can fail.
func (n *Node) open(ctx context.Context) error {
	if _, _, err := iptables.Find(ctx); err != nil {
		return fmt.Errorf("starting the node proxy (--network=none runs without it): %w", err)
	}
	var err error
	if n.lock, err = lock(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(n.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("creating the network's directory: %w", err)
	}
	n.trouble(nodestate.TroubleNetwork, errNotSetUp)
	n.table = netmap.Open(netmap.Config{Path: filepath.Join(n.cfg.Dir, "table"), Logger: n.cfg.Logger})
	n.feed = nameserver.NewFeed(n.table)
	n.names = names{cfg: n.cfg, lock: n.lock, feed: n.feed, look: n.look}
	if n.bridge, err = bridge.New(bridge.DefaultName); err != nil {
		return err
	}
	n.ports = bridge.NewSwitch(n.bridge, n.cfg.Logger)
	n.checks = n.newChecks()
	n.proxy, err = proxy.New(proxy.Config{
		Logger: n.cfg.Logger, Netmap: n.table.Snapshot, Facts: n.proxyFacts, Changed: n.rules, Conflicts: n.conflict, Applied: n.applied,
		Created: n.lock.siblingPath("tables"),
	})
	return err
}

// Close releases the network, whose state in the kernel stays. Run must have returned.
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

// Run keeps the network in its desired state until ctx ends.
func (n *Node) Run(parent context.Context) error {
	group, ctx := errgroup.WithContext(parent)
	group.Go(func() error { return n.table.Run(ctx) })
	group.Go(func() error { return n.proxy.Run(ctx) })
	group.Go(func() error { return n.checks.tunnels.Run(ctx) })
	group.Go(func() error { return n.checks.instances.Run(ctx) })
	group.Go(func() error { return n.checks.names.Run(ctx) })
	group.Go(func() error {
		n.watch(ctx)
		return nil
	})
	group.Go(func() error {
		n.converge(ctx, n.table.Subscribe())
		return nil
	})
	err := group.Wait()
	return errors.Join(err, n.checks.port.Close(context.WithoutCancel(parent)))
}

// Apply applies changes of the network from the controller.
func (n *Node) Apply(c *nodev1.NetworkChanges) { n.feed.Apply(c) }

// SetAddress sets the address at which other nodes reach this node. An invalid address means that
// it is not known. SetAddress does not block.
func (n *Node) SetAddress(a netip.Addr) {
	n.mu.Lock()
	changed := n.address != a
	n.address = a
	n.mu.Unlock()
	if changed {
		n.look.Wake()
	}
}

// SetListeners sets the ports on which the machine's own processes listen. It does not block.
func (n *Node) SetListeners(all []proxy.Listener) {
	n.mu.Lock()
	n.facts.Listeners = all
	n.mu.Unlock()
	n.rules.Wake()
}

// conflict records the ports that both a service and a process use.
func (n *Node) conflict(all []proxy.Conflict, lost map[proxy.HostPort]bool) {
	n.mu.Lock()
	n.conflicts, n.lost = all, lost
	n.mu.Unlock()
	n.news.Wake()
	for _, c := range all {
		n.cfg.Logger.Warn("a process of this machine listens on a port of a workload",
			"protocol", c.Protocol, "port", c.Port, "workload", c.Service.String(), "served", c.Served)
	}
}

// Troubles returns messages about the parts of the network that do not work.
func (n *Node) Troubles() map[nodestate.TroubleKind]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := maps.Clone(n.troubles)
	if all == nil {
		all = map[nodestate.TroubleKind]string{}
	}
	if _, notified := all[nodestate.TroubleNetwork]; !notified && n.attempts >= maxRulesAttempts {
		all[nodestate.TroubleNetwork] = "writing the firewall rules for ports and names failed: " + n.rulesError.Error()
	}
	n.addCheckedLocked(all)
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

// errNotSetUp is the trouble of a node that has just started.
var errNotSetUp = errors.New("the network of the instances is not set up yet")

// trouble records whether a part works.
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
	n.news.Wake()
	if text == "" {
		delete(n.troubles, kind)
		return
	}
	if n.troubles == nil {
		n.troubles = map[nodestate.TroubleKind]string{}
	}
	n.troubles[kind] = text
}

// News returns a channel that is readable after Troubles has changed.
func (n *Node) News() <-chan struct{} { return n.news }

// Lost reports whether a workload has a port although a process of the machine listens on it.
func (n *Node) Lost(p proxy.HostPort) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lost[p]
}

// proxyFacts returns what the proxy must know about the node.
func (n *Node) proxyFacts() proxy.Facts {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.facts
}

// NameServer returns the address of the node's name server: the node's address among its
// instances and a port. It is invalid before the name server runs.
func (n *Node) NameServer() netip.AddrPort { return n.names.at() }

// applied records whether the rules could be applied.
func (n *Node) applied(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.attempts >= maxRulesAttempts
	if n.rulesError = err; err != nil {
		n.attempts++
	} else {
		n.attempts = 0
		if !n.ruled && n.checks.names != nil {
			n.checks.names.Look()
		}
		n.ruled = true
	}
	if before != (n.attempts >= maxRulesAttempts) {
		n.news.Wake()
	}
}

// rulesReady returns why instances must wait for the rules. Without the rules, an instance would
// send its DNS queries to any process that has port 53 of the machine.
func (n *Node) rulesReady() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.ruled:
		return nil
	case n.rulesError != nil:
		return fmt.Errorf("%w: writing the firewall rules for ports and names failed: %w", instance.ErrNetworkNotReady, n.rulesError)
	default:
		return fmt.Errorf("%w: the firewall rules for ports and names are not written yet", instance.ErrNetworkNotReady)
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
