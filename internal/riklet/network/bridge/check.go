package bridge

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/netns"
)

// checkUID is the UID of the check port in its device's name and alias. No instance has it,
// because the UIDs of instances are longer.
const checkUID = "check"

// CheckDevice returns the name of the check port's device on the node's side.
func CheckDevice() string { return Device(checkUID) }

// CheckPort is a port of the bridge that the riklet has for itself. It is connected like an
// instance, with the same devices, filters and neighbor entries. What the riklet sends from its
// namespace therefore takes the path of an instance's packets.
//
// Its address is the last one of the node's range, so other nodes know it. The kernel removes the
// port when the riklet ends, because nothing else holds the namespace.
type CheckPort struct {
	bridge    *Bridge
	namespace *os.File
}

// NewCheckPort returns a check port that is not connected yet. Close removes it.
func NewCheckPort(b *Bridge) *CheckPort { return &CheckPort{bridge: b} }

// Namespace returns the network namespace behind the port. It is nil before the first Connect, and
// stays the same after that.
func (c *CheckPort) Namespace() *os.File { return c.namespace }

// Connect connects the port as the switch is configured, and returns its address. If it is
// connected already, nothing changes. Only one call may run at a time.
func (c *CheckPort) Connect(ctx context.Context, s *Switch) (netip.Addr, error) {
	plan, ok := s.planned()
	if !ok {
		return netip.Addr{}, fmt.Errorf("connecting the check port: %w", instance.ErrNetworkNotReady)
	}
	if c.namespace == nil {
		namespace, err := netns.New()
		if err != nil {
			return netip.Addr{}, fmt.Errorf("connecting the check port: %w", err)
		}
		c.namespace = namespace
	}
	w := Wire{UID: checkUID, Address: plan.Check, Gateway: plan.Gateway.Addr(), MTU: plan.MTU}
	if err := c.bridge.connect(ctx, w, c.namespace); err != nil {
		return netip.Addr{}, fmt.Errorf("connecting the check port: %w", err)
	}
	return plan.Check, nil
}

// Close removes the port.
func (c *CheckPort) Close(ctx context.Context) error {
	if c.namespace == nil {
		return nil
	}
	err := c.bridge.Detach(ctx, checkUID)
	_ = c.namespace.Close()
	c.namespace = nil
	return err
}

// planned returns the plan of the last successful Configure.
func (s *Switch) planned() (Plan, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plan, s.plan.Check.IsValid()
}
