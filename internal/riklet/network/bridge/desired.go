package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"

	"rik.dev/rik/internal/riklet/network/ipam"
)

// DefaultName is the name of the bridge.
const DefaultName = "rik0"

// inside is the name of an instance's own device.
const inside = "eth0"

// Settings are the network settings of the node.
type Settings struct {
	PodCIDR netip.Prefix // the node's own range
	// MTU is the MTU of instances. 0 means the kernel's default.
	MTU int
	// ClusterRanges are the ranges that must not overlap the host's own networks.
	ClusterRanges []ClusterRange
	// Domain is the DNS domain of the cluster.
	Domain string
}

// Plan is everything that the node needs before an instance is attached.
type Plan struct {
	Name    string
	Gateway netip.Prefix // the bridge's address
	Check   netip.Addr   // the check port's address
	MAC     net.HardwareAddr
	MTU     int
	Sysctls []Sysctl
}

// Sysctl is a setting of the kernel, with its path below /proc/sys.
type Sysctl struct{ Path, Value string }

// Desired returns the plan for the settings.
func Desired(name string, s Settings) (Plan, error) {
	pool, err := ipam.New(s.PodCIDR)
	if err != nil {
		return Plan{}, fmt.Errorf("the node's pod CIDR: %w", err)
	}
	gateway := pool.Gateway()
	return Plan{
		Name: name, Gateway: netip.PrefixFrom(gateway, s.PodCIDR.Bits()), Check: ipam.Check(s.PodCIDR), MAC: MAC(gateway), MTU: s.MTU,
		Sysctls: []Sysctl{
			{"net/ipv4/ip_forward", "1"},
			// Neighbors are reached through the node and must not receive redirects. The kernel
			// sends redirects if either of the two settings is on. Other devices keep their own
			// setting.
			{"net/ipv4/conf/all/send_redirects", "0"},
			{"net/ipv4/conf/" + name + "/send_redirects", "0"},
			// Instances must not use source addresses that are not behind the bridge.
			{"net/ipv4/conf/" + name + "/rp_filter", "1"},
			// Instances are no routers, and rik does not support IPv6 yet.
			{"net/ipv6/conf/" + name + "/accept_ra", "0"},
			{"net/ipv6/conf/" + name + "/disable_ipv6", "1"},
		},
	}, nil
}

// insideSysctls are set in the namespace of an instance.
var insideSysctls = []Sysctl{
	// A redirect would make its traffic bypass the gateway.
	{"net/ipv4/conf/all/accept_redirects", "0"},
	{"net/ipv4/conf/" + inside + "/accept_redirects", "0"},
	{"net/ipv6/conf/" + inside + "/disable_ipv6", "1"},
	// Every group may ping with unprivileged sockets, because containers have no CAP_NET_RAW. The
	// kernel separates the two numbers with a tab.
	{"net/ipv4/ping_group_range", "0\t2147483647"},
}

// MAC derives a locally administered hardware address from an IPv4 address. Thus an address keeps
// the MAC that its neighbors have cached when its owner changes.
func MAC(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x02, 'r', b[0], b[1], b[2], b[3]}
}

// devicePrefix is the prefix of device names on the node's side.
const devicePrefix = "rik"

var deviceName = regexp.MustCompile(`^` + devicePrefix + `[0-9a-f]{11}$`)

// Device returns the name of an instance's device on the node's side: 14 bytes, of the 15 that
// IFNAMSIZ allows.
func Device(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return devicePrefix + hex.EncodeToString(sum[:])[:11]
}

// alias returns the alias of a device on the node's side.
func alias(bridge, uid string, address netip.Addr) string {
	return strings.Join([]string{bridge, uid, address.String()}, " ")
}

// readAlias parses an alias. ok is false if the alias was not set by rik.
func readAlias(bridge, text string) (uid string, address netip.Addr, ok bool) {
	fields := strings.Split(text, " ")
	if len(fields) != 3 || fields[0] != bridge || fields[1] == "" {
		return "", netip.Addr{}, false
	}
	address, err := netip.ParseAddr(fields[2])
	return fields[1], address, err == nil && address.Is4()
}
