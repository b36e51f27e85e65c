package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// ErrClash is returned when a range of the cluster is in use on the host.
var ErrClash = errors.New("the host uses addresses of the cluster")

// RouteProtocol marks the routes that rik adds to the node's main table (see
// rt_protos in iproute2; nobody has registered 62).
const RouteProtocol = 62

// Claim is a range that the cluster needs for itself.
type Claim struct {
	Prefix netip.Prefix
	What   string // for people: "the range of this node's instances"
	Flag   string // by which another one is chosen
}

// Use is an address or a route that the host has.
type Use struct {
	Prefix   netip.Prefix
	Device   string // may be empty, for a blackhole say
	Protocol int    // of a route
	Address  bool   // an address with the length of its network
	// Beyond: a route to no link that is shared with other machines. It goes through
	// a gateway, over a point-to-point device such as a VPN's, or to nowhere.
	Beyond bool
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

// ours tells what rik made itself: the bridge, the overlay's devices, the
// instances' devices, and marked routes.
func (u Use) ours(bridge string) bool {
	return u.Device == bridge || u.Protocol == RouteProtocol ||
		deviceName.MatchString(u.Device) || strings.HasPrefix(u.Device, devicePrefix+".")
}

// yields tells of a route that it stops nobody from using a range: it is for a larger
// range, so the cluster's own routes are more specific and the kernel prefers them.
// A VPN adds such a route for 10.0.0.0/8. A network of the host's own is not one: its
// machines may have any address in it.
func (u Use) yields(to netip.Prefix) bool {
	return u.Beyond && !u.Address && u.Prefix.Bits() < to.Bits()
}

// shortestUse is the length below which a route means "everywhere else": the
// default route, and the two halves of it that VPNs set instead.
const shortestUse = 2

// Clash says which of the host's own networks overlap with what the cluster
// claims. A less specific route through a gateway does not. The error names every pair
// and the flag that chooses another range.
func Clash(bridge string, claims []Claim, host []Use) error {
	var pairs []string
	seen := map[string]bool{}
	for _, c := range claims {
		for _, u := range host {
			if !c.Prefix.IsValid() || u.Prefix.Bits() < shortestUse || u.ours(bridge) || u.yields(c.Prefix) || !c.Prefix.Overlaps(u.Prefix) {
				continue
			}
			pair := fmt.Sprintf("%s %s overlaps with %s (choose another with %s)", c.What, c.Prefix, u, c.Flag)
			if !seen[pair] {
				seen[pair] = true
				pairs = append(pairs, pair)
			}
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrClash, strings.Join(pairs, "; "))
}
