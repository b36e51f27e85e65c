package facts

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/vishvananda/netlink"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/riklet/network"
	"rik.dev/rik/internal/riklet/network/bridge"
)

const sysctls = "/proc/sys/net/"

func (g *gatherer) network() doctor.Network {
	n := doctor.Network{
		Forward: text(sysctls + "ipv4/ip_forward"), ForwardOff: forwardOff(), RPFilter: map[string]string{},
		Tracked: int(number(sysctls + "netfilter/nf_conntrack_count")), MaxTracked: int(number(sysctls + "netfilter/nf_conntrack_max")),
	}
	all, _ := strconv.Atoi(text(sysctls + "ipv4/conf/all/rp_filter"))
	for _, device := range uplinks() {
		own, _ := strconv.Atoi(text(sysctls + "ipv4/conf/" + device + "/rp_filter"))
		n.RPFilter[device] = strconv.Itoa(max(all, own)) // the kernel takes the larger one
	}
	n.Clash = g.clash()
	troubles, err := network.LastTroubles(filepath.Join(g.cfg.StateDir, "network"))
	if err == nil {
		n.Overlay, n.Names = troubles[nodestate.TroubleOverlay], troubles[nodestate.TroubleNamesBlocked]
	}
	return n
}

// uplinks returns the devices of default routes.
func uplinks() []string {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	if err != nil {
		return nil
	}
	var devices []string
	for i := range routes {
		if link, err := netlink.LinkByIndex(routes[i].LinkIndex); err == nil {
			devices = append(devices, link.Attrs().Name)
		}
	}
	return devices
}

// clash returns why ranges of the cluster overlap with networks of this machine.
func (g *gatherer) clash() string {
	b, err := bridge.New(bridge.DefaultName)
	if err != nil {
		return ""
	}
	defer b.Close()
	uses, err := b.Host()
	if err != nil {
		return ""
	}
	err = bridge.CheckOverlap(bridge.DefaultName, g.cfg.Claims, uses)
	if !errors.Is(err, bridge.ErrOverlap) {
		return ""
	}
	return err.Error()
}

// off matches the setting that switches forwarding off, in files of sysctl.d(5).
var off = regexp.MustCompile(`(?m)^\s*net[./]ipv4[./]ip_forward\s*=\s*0\s*$`)

// forwardOff returns the files that switch forwarding off at the next boot.
func forwardOff() []string {
	var files []string
	for _, pattern := range []string{"/etc/sysctl.conf", "/etc/sysctl.d/*.conf", "/run/sysctl.d/*.conf", "/usr/lib/sysctl.d/*.conf"} {
		found, _ := filepath.Glob(pattern) // only a wrong pattern is an error
		for _, path := range found {
			if data, err := os.ReadFile(path); err == nil && off.Match(data) {
				files = append(files, path)
			}
		}
	}
	return files
}
