package bridge

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/netns"
)

// removed is the device group of devices that must be deleted: "rik" and one more byte. Devices
// are in group 0 by default.
const removed = 'r'<<24 | 'i'<<16 | 'k'<<8 | 0xdd

// reaper deletes devices together. The kernel needs some twenty milliseconds to delete one
// device, because it waits until no thread uses it any more. It deletes devices one after the
// other, but a whole group takes no longer than one device.
type reaper struct {
	group sync.WaitGroup

	mu      sync.Mutex // guards the fields below; never held over I/O
	waiting []chan error
	running bool
}

// delete removes devices and returns when they are gone. A device that is already gone is no
// error.
func (b *Bridge) delete(links ...netlink.Link) error {
	var errs []error
	for _, link := range links {
		errs = append(errs, b.forget(link))
		if err := b.handle.LinkSetGroup(link, removed); err != nil && !isNotFound(err) {
			errs = append(errs, fmt.Errorf("removing the device %s: %w", link.Attrs().Name, err))
		}
	}
	if len(links) > 0 {
		errs = append(errs, b.reaper.join(b.deleteRemoved))
	}
	return errors.Join(errs...)
}

// join waits for the end of a run of work that starts after this call.
func (r *reaper) join(work func() error) error {
	done := make(chan error, 1)
	r.mu.Lock()
	r.waiting = append(r.waiting, done)
	if !r.running {
		r.running = true
		r.group.Go(func() { r.run(work) })
	}
	r.mu.Unlock()
	return <-done
}

func (r *reaper) run(work func() error) {
	for {
		r.mu.Lock()
		batch := r.waiting
		r.waiting = nil
		r.running = len(batch) > 0
		r.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		err := work()
		for _, done := range batch {
			done <- err
		}
	}
}

// deleteRemoved removes all devices of the group, on a separate socket so that other requests are
// not delayed.
func (b *Bridge) deleteRemoved() error {
	err := netns.Within(b.home, func() error {
		request := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
		request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		request.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(removed)))
		_, err := request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil && !errors.Is(err, unix.ENODEV) { // ENODEV: another was faster
		return fmt.Errorf("removing the devices of group %#x: %w", removed, err)
	}
	return nil
}
