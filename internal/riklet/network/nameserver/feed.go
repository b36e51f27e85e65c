package nameserver

import (
	"context"
	"sync"

	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/rpc/nodev1"
)

// maxPending is how many changes wait for a process before it gets the whole table instead.
const maxPending = 1024

// Feed passes on what a table is told.
type Feed struct {
	table *netmap.Table
	wake  chan struct{} // has a token when there is something to send

	mu sync.Mutex
	// Below is guarded by mu, which also keeps the order of changes.
	whole   bool // the process is to get all of the table
	pending []*nodev1.NetworkChanges
}

// NewFeed gives the feed of a table, which is changed through it only.
func NewFeed(t *netmap.Table) *Feed {
	return &Feed{table: t, wake: make(chan struct{}, 1), whole: true}
}

// Apply changes the table.
func (f *Feed) Apply(c *nodev1.NetworkChanges) {
	f.mu.Lock()
	f.table.Apply(c)
	switch {
	case f.whole:
	case c.GetComplete() || len(f.pending) == maxPending:
		// What is not part of a whole goes at its end.
		f.whole, f.pending = true, nil
	default:
		f.pending = append(f.pending, forNames(c))
	}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Run sends a process the table, and then its changes, until ctx or the connection ends.
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

// take gives what the process does not know.
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
