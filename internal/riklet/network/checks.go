package network

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/riklet/network/ipam"
	"rik.dev/rik/internal/riklet/network/nameserver"
	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/riklet/network/overlay"
	"rik.dev/rik/internal/riklet/network/reach"
)

// checks are the checks of whether packets pass, and the port that they use. See package reach.
type checks struct {
	port      *bridge.CheckPort
	tunnels   *reach.Checker
	instances *reach.Checker
	names     *reach.Names
}

// check is the name of a check, and of the file with its last result.
type check string

const (
	checkTunnels   check = "overlay"
	checkInstances check = "instances"
	checkNames     check = "names"
)

// known is what the checks need of the network as it was last set up.
type known struct {
	all    bool            // all other nodes were known
	tunnel *overlay.Tunnel // nil: none was needed
	direct []overlay.Route
	// throughTunnels is true if the check between instances asks nodes behind tunnels.
	throughTunnels bool
	// The namespace and the address of the check port. The address is invalid while the port is not
	// connected.
	namespace *os.File
	address   netip.Addr
	unable    bool // the check port cannot be connected
	domain    string
}

// LastTroubles returns what the checks of a node found last, by the directory of its network. A check
// without a result is missing. It does not need a running node.
func LastTroubles(dir string) (map[nodestate.TroubleKind][]string, error) {
	all := map[nodestate.TroubleKind][]string{}
	var errs []error
	for _, c := range []check{checkTunnels, checkInstances, checkNames} {
		trouble, checked, err := reach.Last(filepath.Join(dir, string(c)))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !checked {
			continue
		}
		kind := nodestate.TroubleOverlay
		if c == checkNames {
			kind = nodestate.TroubleNamesBlocked
		}
		if all[kind] == nil {
			all[kind] = []string{}
		}
		if trouble != "" {
			all[kind] = append(all[kind], trouble)
		}
	}
	return all, errors.Join(errs...)
}

func (n *Node) newChecks() checks {
	between := func(c check, view func() reach.View) reach.Config {
		return reach.Config{
			View: view, Port: overlay.Port, Path: filepath.Join(n.cfg.Dir, string(c)), Interval: n.cfg.Interval, Silence: n.cfg.Silence,
			Logger: n.cfg.Logger.With("check", string(c)), Notified: func(trouble string) { n.checkedBy(c, trouble) },
		}
	}
	return checks{
		port:      bridge.NewCheckPort(n.bridge),
		tunnels:   reach.New(between(checkTunnels, n.tunnelView)),
		instances: reach.NewBetweenInstances(between(checkInstances, n.instanceView)),
		names: reach.NewNames(reach.NamesConfig{
			View: n.namesView, Path: filepath.Join(n.cfg.Dir, string(checkNames)), Interval: n.cfg.Interval, Silence: n.cfg.Silence,
			Logger: n.cfg.Logger, Notified: func(trouble string) { n.checkedBy(checkNames, trouble) },
		}),
	}
}

// checkedBy records the trouble that a check has found. "" means none.
func (n *Node) checkedBy(c check, trouble string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.checked[c] == trouble {
		return
	}
	if n.checked == nil {
		n.checked = map[check]string{}
	}
	n.checked[c] = trouble
	n.news.Wake()
}

// addCheckedLocked adds what checks have found to the troubles of the parts. It leaves out what
// only follows from another trouble.
func (n *Node) addCheckedLocked(all map[nodestate.TroubleKind]string) {
	tunnels, instances := n.checked[checkTunnels], n.checked[checkInstances]
	if tunnels != "" && n.known.throughTunnels {
		instances = ""
	}
	var overlay []string
	for _, text := range []string{tunnels, instances} {
		if text != "" {
			overlay = append(overlay, text)
		}
	}
	if len(overlay) > 0 {
		all[nodestate.TroubleOverlay] = strings.Join(overlay, "; ")
	}
	if text := n.checked[checkNames]; text != "" && all[nodestate.TroubleNetwork] == "" && all[nodestate.TroubleNames] == "" {
		all[nodestate.TroubleNamesBlocked] = text
	}
}

// setPlan records the ways to other nodes.
func (n *Node) setPlan(s *netmap.Snapshot, plan overlay.Plan) {
	n.mu.Lock()
	// A netmap that has become partial does not invalidate what was known before.
	n.known.tunnel, n.known.direct, n.known.all = plan.Tunnel, plan.Direct, n.known.all || !s.Partial
	n.mu.Unlock()
	n.checks.tunnels.Look()
	n.checks.instances.Look()
}

// connectCheckPort connects the check port, once the network is set up. While that fails, the
// results of the checks stay.
func (n *Node) connectCheckPort(ctx context.Context, s *netmap.Snapshot) error {
	address, err := n.checks.port.Connect(ctx, n.ports)
	n.mu.Lock()
	before := n.known
	n.known.namespace, n.known.address, n.known.unable = n.checks.port.Namespace(), address, err != nil
	n.known.domain = s.Settings.Domain
	changed := before.address != address || before.unable != n.known.unable || before.domain != n.known.domain
	n.mu.Unlock()
	if changed {
		n.checks.instances.Look()
		n.checks.names.Look()
	}
	return err
}

// tunnelView returns the nodes that the check of tunnels may ask: those at the other ends of
// tunnels that can answer, as far as the cluster knows.
func (n *Node) tunnelView() reach.View {
	n.mu.Lock()
	tunnel, known := n.known.tunnel, n.known.all
	n.mu.Unlock()
	v := reach.View{Known: known}
	if tunnel == nil {
		return v
	}
	v.Device = overlay.Device
	v.Self = reach.Peer{Name: n.cfg.Node, Inner: tunnel.Inner, MAC: tunnel.MAC}
	peers := n.table.Snapshot().Peers
	for _, e := range tunnel.Ends {
		if peers[e.Name].Answers {
			v.Peers = append(v.Peers, reach.Peer{Name: e.Name, Outer: e.Outer, Inner: e.Inner, Bridge: e.To.Addr().Next(), MAC: e.MAC})
		}
	}
	return v
}

// instanceView returns the nodes that the check between instances may ask.
func (n *Node) instanceView() reach.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	var v reach.View
	v, n.known.throughTunnels = betweenInstances(n.cfg.Node, n.table.Snapshot(), n.known)
	return v
}

// betweenInstances computes instanceView. The nodes to ask are those that are reached by plain
// routes, or those behind tunnels if no other can answer. The rest may ask this node.
func betweenInstances(self string, s *netmap.Snapshot, k known) (v reach.View, throughTunnels bool) {
	v = reach.View{
		Known: k.all && k.address.IsValid(), Unable: k.unable, Namespace: k.namespace, Cluster: s.Settings.ClusterCIDR,
		Self: reach.Peer{Name: self, Check: k.address},
	}
	direct, tunnels := map[netip.Prefix]netip.Addr{}, map[netip.Prefix]netip.Addr{}
	for _, r := range k.direct {
		direct[r.To] = r.Via
	}
	if k.tunnel != nil {
		for _, e := range k.tunnel.Ends {
			tunnels[e.To] = e.Outer
		}
	}
	asked, others := reachedBy(s, direct), reachedBy(s, tunnels)
	able := func(p reach.Peer) bool { return s.Peers[p.Name].Answers }
	throughTunnels = !slices.ContainsFunc(asked, able)
	if throughTunnels {
		asked, others = others, asked
	}
	for _, p := range asked {
		if able(p) {
			v.Peers = append(v.Peers, p)
		} else {
			others = append(others, p)
		}
	}
	v.Others = others
	return v, throughTunnels
}

// reachedBy returns the nodes to whose ranges there are ways, with the address to which each way
// leads, in a fixed order.
func reachedBy(s *netmap.Snapshot, ways map[netip.Prefix]netip.Addr) (all []reach.Peer) {
	for name, p := range s.Peers {
		if outer, ok := ways[p.PodCIDR]; ok {
			all = append(all, reach.Peer{Name: name, Outer: outer, Check: ipam.Check(p.PodCIDR)})
		}
	}
	slices.SortFunc(all, func(a, b reach.Peer) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// namesView returns where instances of this node ask for names.
func (n *Node) namesView() reach.NamesView {
	listens := n.names.at()
	n.mu.Lock()
	defer n.mu.Unlock()
	return reach.NamesView{
		// Without the rules, queries do not reach the name server. It forwards queries for names
		// outside the domain to other servers.
		Known: listens.IsValid() && n.known.address.IsValid() && n.ruled && n.known.domain != "", Unable: n.known.unable, Namespace: n.known.namespace,
		Server: netip.AddrPortFrom(listens.Addr(), nameserver.ClientPort), Listens: listens, Domain: n.known.domain, Bridge: bridge.DefaultName,
	}
}
