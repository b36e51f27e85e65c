package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// ErrOverlap is returned if the host uses a range of the cluster.
var ErrOverlap = errors.New("the host uses addresses of the cluster's ranges")

// RouteProtocol marks the routes that rik adds to the node's main table (see rt_protos in
// iproute2; 62 is not registered).
const RouteProtocol = 62

// ClusterRange is a range that the cluster needs for itself.
type ClusterRange struct {
	Prefix netip.Prefix
	What   string // for messages: "the range of this node's instances"
	Flag   string // the flag that chooses another range
}

// Use is an address or a route of the host.
type Use struct {
	Prefix   netip.Prefix
	Device   string // may be empty, for example for a blackhole
	Protocol int    // of a route
	Address  bool   // an address with the prefix length of its network
	// CrossesGateway is true for a route that does not lead to a link shared with other machines.
	// Such a route uses a gateway or a point-to-point device such as a VPN's, or it drops packets.
	CrossesGateway bool
}

func (u Use) String() string {
	kind := "the route to " + u.Prefix.Masked().String()
	if u.Address {
		kind = "the address " + u.Prefix.String()
	}
	if u.Device == "" {
		return kind
	}
	return kind + " on " + u.Device
}

// ours reports whether rik created it: the bridge, the overlay's device, the instances' devices,
// or a marked route.
func (u Use) ours(bridge string) bool {
	return u.Device == bridge || u.Protocol == RouteProtocol || IsDevice(u.Device)
}

// IsDevice reports whether a node creates devices with a name like this, in addition to the bridge: those of
// instances, and the overlay's.
func IsDevice(name string) bool {
	return deviceName.MatchString(name) || strings.HasPrefix(name, devicePrefix+".")
}

// isLessSpecificRoute reports whether u is a route for a larger range than to, and does not lead to
// directly connected machines. Such a route does not conflict with the cluster, because the kernel
// prefers the cluster's own, more specific routes. A VPN adds such a route for 10.0.0.0/8. The
// machines of a directly connected network may have any address in it, so that network conflicts.
func (u Use) isLessSpecificRoute(to netip.Prefix) bool {
	return u.CrossesGateway && !u.Address && u.Prefix.Bits() < to.Bits()
}

// shortestUse is the prefix length below which a route is a kind of default route: the default
// route itself, or the two halves of it that VPNs add instead.
const shortestUse = 2

// CheckOverlap checks which of the host's own networks overlap with the ranges of the cluster. A
// less specific route through a gateway does not count. The error contains every pair, and the flag
// that chooses another range.
func CheckOverlap(bridge string, ranges []ClusterRange, host []Use) error {
	var pairs []string
	seen := map[string]bool{}
	for _, c := range ranges {
		for _, u := range host {
			if !c.Prefix.IsValid() || u.Prefix.Bits() < shortestUse || u.ours(bridge) || u.isLessSpecificRoute(c.Prefix) || !c.Prefix.Overlaps(u.Prefix) {
				continue
			}
			pair := fmt.Sprintf("%s %s overlaps with %s; choose another range with %s", c.What, c.Prefix, u, c.Flag)
			if !seen[pair] {
				seen[pair] = true
				pairs = append(pairs, pair)
			}
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrOverlap, strings.Join(pairs, "; "))
}
