package network

import (
	"context"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/riklet/network/overlay"
)

// watch triggers a check of the host when its links or addresses change, until ctx ends. The next
// regular check finds changes that watch misses.
func (n *Node) watch(ctx context.Context) {
	for {
		if err := n.listen(ctx); err != nil {
			n.cfg.Logger.Debug("watching the host's links and addresses failed", "err", err)
		}
		if !pause.For(ctx, lookInterval) {
			return
		}
		n.look.Wake()
	}
}

// listen returns when the kernel stops sending events. The kernel does that when there are too
// many at once.
func (n *Node) listen(ctx context.Context) error {
	done := make(chan struct{})
	links, addresses := make(chan netlink.LinkUpdate), make(chan netlink.AddrUpdate)
	if err := netlink.LinkSubscribe(links, done); err != nil {
		return err
	}
	if err := netlink.AddrSubscribe(addresses, done); err != nil {
		close(addresses)
		end(done, links, addresses)
		return err
	}
	defer end(done, links, addresses)
	for {
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-links:
			if !ok {
				return nil
			}
			if matters(u) {
				n.look.Wake()
			}
		case _, ok := <-addresses:
			if !ok {
				return nil
			}
			n.look.Wake()
		}
	}
}

// end waits until both senders have ended: each may be about to send.
func end(done chan<- struct{}, links <-chan netlink.LinkUpdate, addresses <-chan netlink.AddrUpdate) {
	close(done)
	for links != nil || addresses != nil {
		select {
		case _, ok := <-links:
			if !ok {
				links = nil
			}
		case _, ok := <-addresses:
			if !ok {
				addresses = nil
			}
		}
	}
}

// matters reports whether a link event needs a check. It ignores the links of instances, which
// change often, and the changes of rik's own devices that follow from them.
func matters(u netlink.LinkUpdate) bool {
	name := u.Attrs().Name
	if !strings.HasPrefix(name, "rik") {
		return true
	}
	ours := name == bridge.DefaultName || name == overlay.Device
	return ours && (u.Header.Type == unix.RTM_DELLINK || u.Attrs().Flags&net.FlagUp == 0)
}
