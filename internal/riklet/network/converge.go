package network

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"time"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/riklet/network/nameserver"
	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/riklet/network/overlay"
)

const (
	// lookInterval is the time between two checks of the host without a trigger.
	lookInterval = 15 * time.Second
	// retryInterval is the same while something does not work.
	retryInterval = 5 * time.Second
	// coalesce is the shortest time between two checks.
	coalesce = 100 * time.Millisecond
)

// converge applies the desired state of bridge, overlay and name server whenever it or the host
// has changed, until ctx ends. The proxy follows the netmap by itself.
func (n *Node) converge(ctx context.Context, changed <-chan struct{}) {
	defer n.names.stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	pass := pass{node: n}
	for look := true; ; {
		s := n.table.Snapshot()
		// Instances change all the time; only nodes matter here.
		if look || s.Partial != pass.seen.Partial || s.Settings != pass.seen.Settings || !maps.EqualFunc(s.Peers, pass.seen.Peers, samePlace) {
			pass.run(ctx, s)
			timer.Reset(pass.wait())
		}
		n.rules.Wake()
		if !pause.For(ctx, coalesce) {
			return
		}
		look = false
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-n.look:
			look = true
		case <-timer.C:
			look = true
		}
	}
}

// samePlace reports whether two versions of a node need the same route.
func samePlace(a, b netmap.Peer) bool {
	a.Answers = b.Answers
	return a == b
}

// pass is one check, with the state of the last one.
type pass struct {
	node    *Node
	seen    netmap.Snapshot
	refused string
	trouble string
	// uncheckable is why the network cannot be checked, as last logged.
	checkError string
}

// wait returns the longest time until the next check.
func (p *pass) wait() time.Duration {
	if p.trouble != "" {
		return retryInterval
	}
	return lookInterval
}

// run converges once. A failure is logged if it is new, and retried.
func (p *pass) run(ctx context.Context, s *netmap.Snapshot) {
	p.seen = *s
	p.seen.Endpoints, p.seen.Services = nil, nil // do not keep them in memory
	err := p.apply(ctx, s)
	if ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == p.trouble:
	case err != nil:
		p.node.cfg.Logger.Error("setting up the network of this node failed; trying again", "err", err)
	default:
		p.node.cfg.Logger.Info("the network of this node was set up again")
	}
	p.trouble = text
}

func (p *pass) apply(ctx context.Context, s *netmap.Snapshot) error {
	n := p.node
	own := s.Peers[n.cfg.Node].PodCIDR
	if !own.IsValid() {
		return nil // not a fault: the controller has not sent the settings yet
	}
	n.mu.Lock()
	address := n.address
	n.mu.Unlock()
	network, names := p.setUp(ctx, s, own, address)
	if ctx.Err() == nil {
		n.trouble(nodestate.TroubleNetwork, network)
		n.trouble(nodestate.TroubleNames, names)
	}
	return errors.Join(network, names)
}

// setUp sets up the network of a node that has a pod CIDR, and returns what of it does not work.
func (p *pass) setUp(ctx context.Context, s *netmap.Snapshot, own netip.Prefix, address netip.Addr) (network, names error) {
	n := p.node
	host, err := overlay.Look(n.cfg.Node, address)
	if err != nil {
		return err, nil
	}
	if n.cfg.Tunnels {
		host.OnLink = nil
	}
	// A setup that fails removes nothing. Instances that an earlier setup connected keep their
	// ports and the name server.
	configured := n.ports.Configure(ctx, settings(s, own, host))
	if configured != nil {
		inPlace, err := n.bridge.IsConfigured(netip.PrefixFrom(own.Addr().Next(), own.Bits()))
		if !inPlace || err != nil {
			return errors.Join(configured, err), nil
		}
	}
	if host.Bridge, err = overlay.LookBridge(); err != nil {
		return errors.Join(configured, err), nil
	}
	plan := overlay.Desired(s, host)
	// The name server listens at the bridge's address, which exists now. The rules lead to its
	// port.
	names = n.names.serve(ctx, own.Addr().Next())
	p.factsFor(own, host, plan)
	check := n.connectCheckPort(ctx, s)
	if !errors.Is(configured, bridge.ErrOverlap) { // new routes might take addresses from the host
		err = p.applyRoutes(s, plan, address)
	}
	p.unchecked(check)
	return errors.Join(configured, err), names
}

// applyRoutes applies the routes to other nodes. Before the node's own address is known, the routes
// of an earlier run stay.
func (p *pass) applyRoutes(s *netmap.Snapshot, plan overlay.Plan, own netip.Addr) error {
	if !own.IsValid() {
		return nil
	}
	changes, err := overlay.Apply(plan)
	p.node.setPlan(s, plan)
	if changes > 0 {
		p.node.cfg.Logger.Info("the routes to other nodes changed", "direct", len(plan.Direct), "tunnels", ends(plan), "changes", changes)
	}
	p.report(plan.Refused)
	return err
}

// unchecked logs why the network cannot be checked, once.
func (p *pass) unchecked(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != p.checkError && err != nil {
		p.node.cfg.Logger.Warn("cannot check whether packets between instances pass", "err", err)
	}
	p.checkError = text
}

func settings(s *netmap.Snapshot, own netip.Prefix, host overlay.Host) bridge.Settings {
	return bridge.Settings{
		PodCIDR: own, MTU: overlay.MTU(host), Domain: s.Settings.Domain,
		ClusterRanges: []bridge.ClusterRange{
			{Prefix: s.Settings.ClusterCIDR, What: "the address range of instances", Flag: "the server's --cluster-cidr"},
			{Prefix: s.Settings.ServiceCIDR, What: "the range of cluster IPs", Flag: "the server's --service-cidr"},
		},
	}
}

func ends(plan overlay.Plan) int {
	if plan.Tunnel == nil {
		return 0
	}
	return len(plan.Tunnel.Ends)
}

// report logs the nodes that are left out, once.
func (p *pass) report(refused []string) {
	text := ""
	for _, r := range refused {
		text += r + "\n"
	}
	if text != p.refused {
		p.refused = text
		for _, r := range refused {
			p.node.cfg.Logger.Warn("no route to a node is created", "err", r)
		}
	}
}

// factsFor passes the facts of the node to the proxy.
func (p *pass) factsFor(own netip.Prefix, host overlay.Host, plan overlay.Plan) {
	links := []string{bridge.DefaultName}
	if plan.Tunnel != nil {
		links = append(links, overlay.Device)
	}
	if host.LinkName != "" {
		links = append(links, host.LinkName)
	}
	// Also without a tunnel on this node: another node may have different links and use one.
	applyRoutes := []string{overlay.Device}
	if host.LinkName != "" && len(host.OnLink) > 0 {
		applyRoutes = append(applyRoutes, host.LinkName)
	}
	n := p.node
	n.mu.Lock()
	defer n.mu.Unlock()
	n.facts.PodCIDR, n.facts.Links, n.facts.Ways, n.facts.Bridge = own, links, applyRoutes, bridge.DefaultName
	n.facts.AllowFrom, n.facts.TunnelPort = n.cfg.AllowFrom, 0
	if at := n.names.at(); at.IsValid() {
		n.facts.NamePort = at.Port()
	} else if n.facts.NamePort == 0 {
		// The name server does not run, so instances get an error at once. Without a redirection
		// they would query any process that has port 53 of the machine.
		n.facts.NamePort = nameserver.Port
	}
	if plan.Tunnel != nil {
		n.facts.TunnelPort = overlay.Port
	}
}
