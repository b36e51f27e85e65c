package nodeapi

import (
	"context"
	"fmt"

	"rik.dev/rik/internal/rpc/nodev1"
)

// Network tells what nodes have to know of the network between instances.
type Network interface {
	// Follow calls send with the whole and then with every change, until ctx ends
	// or send fails, of which it returns the error. Nobody changes the messages.
	Follow(ctx context.Context, send func(*nodev1.NetworkChanges) error) error
}

// sendNetwork tells a node of the network until its stream ends. A node that
// does not read holds up nobody else, and makes nothing wait here: what changes
// meanwhile is looked up when it has read what came before.
func (s *Server) sendNetwork(c *connection) {
	if s.cfg.Network == nil {
		return
	}
	err := s.cfg.Network.Follow(c.ctx, func(m *nodev1.NetworkChanges) error {
		return c.send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Network{Network: m}})
	})
	if err != nil {
		c.end(fmt.Errorf("telling node %s of the network: %w", c.node, err))
	}
}
