package network

import (
	"errors"
	"path/filepath"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/riklet/network/overlay"
	"rik.dev/rik/internal/riklet/network/reach"
)

// tunnelEnds are the ends of the tunnels that were last set up.
type tunnelEnds struct {
	tunnel *overlay.Tunnel // nil: none was needed
	known  bool            // all other nodes were known
}

// newChecker returns the check of whether overlay packets pass between this node and others.
func (n *Node) newChecker() *reach.Checker {
	return reach.New(reach.Config{
		View: n.view, Port: overlay.Port, Path: filepath.Join(n.cfg.Dir, "overlay"),
		Interval: n.cfg.Interval, Silence: n.cfg.Silence, Logger: n.cfg.Logger,
		Notified: func(trouble string) {
			if trouble == "" {
				n.trouble(nodestate.TroubleOverlay, nil)
				return
			}
			n.trouble(nodestate.TroubleOverlay, errors.New(trouble))
		},
	})
}

// setPlan records the tunnels to other nodes.
func (n *Node) setPlan(s *netmap.Snapshot, plan overlay.Plan) {
	n.mu.Lock()
	// A netmap that has become partial does not invalidate what was known before.
	n.ends = tunnelEnds{tunnel: plan.Tunnel, known: n.ends.known || !s.Partial}
	n.mu.Unlock()
	n.checker.Look()
}

// view returns the nodes that the checker may query: those at the other ends of tunnels that can
// answer, as far as the cluster knows. Nodes on the same link are reached without a tunnel.
func (n *Node) view() reach.View {
	n.mu.Lock()
	tunnel, known := n.ends.tunnel, n.ends.known
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
