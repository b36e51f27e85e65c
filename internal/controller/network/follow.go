package network

import (
	"context"
	"sync"
	"time"

	"rik.dev/rik/internal/rpc/nodev1"
)

// pace is the least time between two sets of changes for one reader: what
// changes meanwhile is sent once, as it then is.
const pace = 50 * time.Millisecond

// batch are the messages that bring a reader from one version to another.
// Many readers share one; nobody changes it.
type batch struct {
	from, to uint64
	messages []*nodev1.NetworkChanges
}

// batches keeps the latest of each sort: thousands of nodes are told the same at
// nearly the same moment.
type batches struct {
	mu             sync.Mutex
	whole, changes *batch
}

// whole gives the messages with everything.
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

// changes gives what changed after a version, and a channel that is closed at
// the next change. Without a batch the reader is too far behind and needs the
// whole; an empty one says that nothing changed.
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

// follow tells one reader the whole and then every change, until ctx ends, the
// table is over, or send fails.
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

// pause lets changes meet; false when there is nothing to wait for any more.
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

// Publisher tells nodes what the table of the active controller holds. Readers
// stay through a change of controllers in this process: each new table is told
// as a whole. While this controller is not the active one, nothing is told.
type Publisher struct {
	mu sync.Mutex
	// table is guarded by mu, and so is over, which is closed when it is replaced.
	table *Table
	over  chan struct{}
}

// NewPublisher makes one that has nothing to tell yet.
func NewPublisher() *Publisher { return &Publisher{over: make(chan struct{})} }

// Set tells another table from now on, or none.
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

// Follow calls send with the whole table and then with every change, several at
// a time, until ctx ends or send fails, of which it returns the error. Messages
// are shared: send must not change them.
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
