package nameserver

import (
	"context"
	"sync"

	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/wakeup"
)

// maxPending is how many changes wait for a process before it gets the complete netmap instead.
const maxPending = 1024

// Feed applies changes to a netmap and forwards them to the process.
type Feed struct {
	table *netmap.Store
	wake  wakeup.Signal // set if there is something to send

	mu sync.Mutex
	// The fields below are guarded by mu, which also preserves the order of changes.
	whole   bool // the process must get the complete netmap
	pending []*nodev1.NetworkChanges
}

// NewFeed returns the feed of a netmap, which must only be changed through the feed.
func NewFeed(t *netmap.Store) *Feed {
	return &Feed{table: t, wake: wakeup.New(), whole: true}
}

// Apply changes the netmap.
func (f *Feed) Apply(c *nodev1.NetworkChanges) {
	f.mu.Lock()
	f.table.Apply(c)
	switch {
	case f.whole:
	case c.GetComplete() || len(f.pending) == maxPending:
		// Entries that are not in a complete netmap are removed at its end.
		f.whole, f.pending = true, nil
	default:
		f.pending = append(f.pending, forNames(c))
	}
	f.mu.Unlock()
	f.wake.Wake()
}

// Run sends the process the netmap, and then its changes, until ctx or the connection ends.
func (f *Feed) Run(ctx context.Context, c *Client) error {
	f.mu.Lock()
	f.whole, f.pending = true, nil
	f.mu.Unlock()
	for {
		for _, changes := range f.take() {
			if err := c.send(changes); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.Gone():
			return errGone
		case <-f.wake:
		}
	}
}

// take returns the changes that the process does not have yet.
func (f *Feed) take() []*nodev1.NetworkChanges {
	f.mu.Lock()
	defer f.mu.Unlock()
	pending := f.pending
	if f.whole {
		whole := forNames(f.table.Snapshot().Encode())
		whole.Begin, whole.Complete = true, true
		pending = []*nodev1.NetworkChanges{whole}
	}
	f.whole, f.pending = false, nil
	return pending
}
