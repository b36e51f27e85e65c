package nodeapi

import (
	"context"
	"fmt"

	"rik.dev/rik/internal/rpc/nodev1"
)

// Network sends the netmap to nodes.
type Network interface {
	// Follow calls send with the whole netmap and then with every change, until ctx ends or send
	// fails. It returns the error of send. The messages must not be changed.
	Follow(ctx context.Context, send func(*nodev1.NetworkChanges) error) error
}

// sendNetwork sends a node the netmap until its stream ends. A node that does not read does not
// delay other nodes, and no messages accumulate for it: the changes are computed when it has
// read the earlier ones.
func (s *Server) sendNetwork(c *connection) {
	if s.cfg.Network == nil {
		return
	}
	err := s.cfg.Network.Follow(c.ctx, func(m *nodev1.NetworkChanges) error {
		return c.send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Network{Network: m}})
	})
	if err != nil {
		c.end(fmt.Errorf("sending the netmap to node %s: %w", c.node, err))
	}
}
