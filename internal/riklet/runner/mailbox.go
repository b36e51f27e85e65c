package runner

import "sync"

// mailbox receives work for one goroutine from all others.
type mailbox struct {
	wake chan struct{} // readable after a post; has a buffer of one

	mu    sync.Mutex // guards inbox
	inbox []func()
}

func newMailbox() mailbox { return mailbox{wake: make(chan struct{}, 1)} }

// post sends work to the mailbox's goroutine. It never blocks.
func (b *mailbox) post(work func()) {
	b.mu.Lock()
	b.inbox = append(b.inbox, work)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// takeInbox does the work that was posted.
func (b *mailbox) takeInbox() {
	b.mu.Lock()
	inbox := b.inbox
	b.inbox = nil
	b.mu.Unlock()
	for _, work := range inbox {
		work()
	}
}
