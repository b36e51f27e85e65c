package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/network/ipam"
)

// Switch assigns addresses to instances and connects them. Configure makes it ready. It must be
// called again when the settings may have changed, and at regular intervals, to repair what other
// programs changed.
type Switch struct {
	bridge *Bridge
	log    *slog.Logger

	mu       sync.Mutex // guards the fields below; never held over I/O
	settings Settings
	plan     Plan
	pool     *ipam.Pool      // nil until configured
	freed    map[string]bool // the UIDs that were detached while pool was nil
	trouble  error           // why nothing can be attached
}

var _ instance.Network = (*Switch)(nil)

// NewSwitch returns a Switch for a Bridge, which it does not close. A nil logger discards logs.
func NewSwitch(b *Bridge, log *slog.Logger) *Switch {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Switch{bridge: b, log: log, freed: map[string]bool{}, trouble: errNoRange}
}

var errNoRange = fmt.Errorf("%w: the controller has not sent its address range yet", instance.ErrNetworkNotReady)

// Ready implements instance.Network.
func (s *Switch) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble == nil && s.pool.Free() == 0 {
		return fmt.Errorf("%w: all addresses of %s are in use", instance.ErrNetworkNotReady, s.settings.PodCIDR)
	}
	return s.trouble
}

// Configure sets up the bridge according to the settings. If that fails, or if the settings overlap
// with the host's networks, connected instances stay connected, and new ones wait. Only one call
// may run at a time.
func (s *Switch) Configure(ctx context.Context, settings Settings) error {
	plan, pool, err := s.configure(ctx, settings)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.trouble = fmt.Errorf("%w: %w", instance.ErrNetworkNotReady, err)
		return err
	}
	if pool != nil {
		s.installLocked(pool)
	}
	s.settings, s.plan, s.trouble = settings, plan, nil
	return nil
}

// configure returns a pool if the Switch needs a new one.
func (s *Switch) configure(ctx context.Context, settings Settings) (Plan, *ipam.Pool, error) {
	plan, err := Desired(s.bridge.name, settings)
	if err != nil {
		return plan, nil, err
	}
	host, err := s.bridge.Host()
	if err != nil {
		return plan, nil, err
	}
	if err := CheckOverlap(s.bridge.name, settings.ClusterRanges, host); err != nil {
		return plan, nil, err
	}
	changed, err := s.bridge.Apply(ctx, plan)
	if err != nil {
		return plan, nil, err
	}
	if changed {
		s.log.Info("the bridge of the instances was set up", "bridge", plan.Name, "address", plan.Gateway, "mtu", plan.MTU)
	}
	if s.has(settings.PodCIDR) {
		return plan, nil, nil
	}
	pool, err := s.fill(settings.PodCIDR)
	return plan, pool, err
}

// has reports whether the pool is for that range. It drops a pool for another range.
func (s *Switch) has(prefix netip.Prefix) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pool != nil && s.pool.Prefix() == prefix {
		return true
	}
	s.pool, s.trouble = nil, errNoRange
	return false
}

// installLocked installs a pool. It releases the addresses that were detached while the pool was
// being filled.
func (s *Switch) installLocked(pool *ipam.Pool) {
	for uid := range s.freed {
		pool.Release(uid)
	}
	clear(s.freed)
	s.pool = pool
}

// fill returns a pool in which the addresses of connected instances are reserved.
func (s *Switch) fill(prefix netip.Prefix) (*ipam.Pool, error) {
	pool, err := ipam.New(prefix)
	if err != nil {
		return nil, err
	}
	ports, err := s.bridge.instances()
	if err != nil {
		return nil, err
	}
	for _, p := range ports {
		if p.UID == "" {
			continue
		}
		if err := pool.Reserve(p.UID, p.Address); err != nil {
			s.log.Warn("an instance has an address outside the pod CIDR of the node, or the address of another instance", "instance", p.UID, "err", err)
		}
	}
	return pool, nil
}

// Attach implements instance.Network.
func (s *Switch) Attach(ctx context.Context, uid string, pid int) (instance.Attachment, error) {
	address, plan, domain, err := s.allocate(uid)
	if err != nil {
		return instance.Attachment{}, err
	}
	gateway := plan.Gateway.Addr()
	if err := s.bridge.Attach(ctx, Wire{UID: uid, PID: pid, Address: address, Gateway: gateway, MTU: plan.MTU}); err != nil {
		return instance.Attachment{}, err
	}
	return instance.Attachment{
		Address: netip.PrefixFrom(address, address.BitLen()), Gateway: gateway, DNS: gateway, Domain: domain,
	}, nil
}

func (s *Switch) allocate(uid string) (netip.Addr, Plan, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble != nil {
		return netip.Addr{}, Plan{}, "", s.trouble
	}
	address, err := s.pool.Allocate(uid)
	if err != nil {
		err = fmt.Errorf("%w: %w", instance.ErrNetworkNotReady, err)
	}
	return address, s.plan, s.settings.Domain, err
}

// Detach implements instance.Network.
func (s *Switch) Detach(ctx context.Context, uid string) error {
	if err := s.bridge.Detach(ctx, uid); err != nil {
		return err
	}
	s.release(uid)
	return nil
}

// Keep implements instance.Network.
func (s *Switch) Keep(ctx context.Context, uids []string) error {
	ports, err := s.bridge.instances()
	if err != nil {
		return err
	}
	var links []netlink.Link
	var gone []string
	for _, p := range ports {
		if p.UID != "" && slices.Contains(uids, p.UID) {
			continue
		}
		s.log.Info("disconnecting an instance without a record", "instance", p.UID, "device", p.Device)
		links, gone = append(links, p.link), append(gone, p.UID)
	}
	if err := s.bridge.delete(links...); err != nil {
		return err
	}
	s.release(gone...)
	return nil
}

func (s *Switch) release(uids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, uid := range uids {
		if s.pool != nil {
			s.pool.Release(uid)
		} else {
			s.freed[uid] = true
		}
	}
}
