package network

import (
	"context"
	"sync"
	"time"

	"rik.dev/rik/internal/rpc/nodev1"
)

// pace is the minimum time between two batches of changes for one reader. An object that
// changes several times in between is sent once, in its last state.
const pace = 50 * time.Millisecond

// batch holds the messages that bring a reader from one version to another. Many readers share
// a batch, so it must not be changed.
type batch struct {
	from, to uint64
	messages []*nodev1.NetworkChanges
}

// batches caches the latest batch of each kind, because thousands of nodes receive the same
// messages at nearly the same time.
type batches struct {
	mu             sync.Mutex
	whole, changes *batch
}

// whole returns a batch with the whole netmap.
func (t *Table) whole() *batch {
	t.batches.mu.Lock()
	defer t.batches.mu.Unlock()
	t.mu.RLock()
	defer t.mu.RUnlock()
	if b := t.batches.whole; b != nil && b.to == t.journal.version {
		return b
	}
	b := &batch{to: t.journal.version, messages: pieces(t.journal.all())}
	first, last := b.messages[0], b.messages[len(b.messages)-1]
	first.Begin, last.Complete = true, true
	s := &t.config.Settings
	first.Settings = &nodev1.NetworkSettings{
		ClusterCidr: s.ClusterCIDR.String(), ServiceCidr: s.ServiceCIDR.String(), Domain: s.Domain,
	}
	t.batches.whole = b
	return b
}

// changes returns the changes after a version, and a channel that is closed at the next change.
// A nil batch means that the reader is too far behind and needs the whole netmap. An empty
// batch means that nothing changed.
func (t *Table) changes(from uint64) (b *batch, news <-chan struct{}) {
	t.batches.mu.Lock()
	defer t.batches.mu.Unlock()
	t.mu.RLock()
	defer t.mu.RUnlock()
	news = t.journal.news
	if from == t.journal.version {
		return &batch{from: from, to: from}, news
	}
	if b := t.batches.changes; b != nil && b.from == from && b.to == t.journal.version {
		return b, news
	}
	entries, ok := t.journal.since(from)
	if !ok {
		return nil, news
	}
	b = &batch{from: from, to: t.journal.version, messages: pieces(entries)}
	t.batches.changes = b
	return b, news
}

// follow sends one reader the whole netmap and then every change, until ctx ends, the table is
// replaced, or send fails.
func (t *Table) follow(ctx context.Context, over <-chan struct{}, send func(*nodev1.NetworkChanges) error) error {
	b := t.whole()
	for {
		for _, m := range b.messages {
			if ended(ctx, over) {
				return nil
			}
			if err := send(m); err != nil {
				return err
			}
		}
		if len(b.messages) > 0 && !pause(ctx, over) {
			return nil
		}
		next, news := t.changes(b.to)
		if next == nil {
			next = t.whole()
		} else if len(next.messages) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-over:
				return nil
			case <-news:
			}
		}
		b = next
	}
}

func ended(ctx context.Context, over <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return true
	case <-over:
		return true
	default:
		return false
	}
}

// pause waits so that changes accumulate. It returns false if the reader or the table has
// ended.
func pause(ctx context.Context, over <-chan struct{}) bool {
	timer := time.NewTimer(pace)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-over:
		return false
	case <-timer.C:
		return true
	}
}

// Publisher sends nodes the netmap of the active controller. Readers stay connected when the
// active controller of this process changes: each new table is sent as a whole. While this
// controller is not active, nothing is sent.
type Publisher struct {
	mu sync.Mutex
	// mu guards table and over. over is closed when table is replaced.
	table *Table
	over  chan struct{}
}

// NewPublisher creates a publisher without a table.
func NewPublisher() *Publisher { return &Publisher{over: make(chan struct{})} }

// Set replaces the table. A nil table stops the sending.
func (p *Publisher) Set(t *Table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table = t
	close(p.over)
	p.over = make(chan struct{})
}

func (p *Publisher) present() (*Table, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table, p.over
}

// Follow calls send with the whole netmap and then with every change, several at a time, until
// ctx ends or send fails. It returns the error of send. Messages are shared: send must not
// change them.
func (p *Publisher) Follow(ctx context.Context, send func(*nodev1.NetworkChanges) error) error {
	for ctx.Err() == nil {
		table, over := p.present()
		if table == nil {
			select {
			case <-ctx.Done():
			case <-over:
			}
			continue
		}
		if err := table.follow(ctx, over, send); err != nil {
			return err
		}
	}
	return nil
}
