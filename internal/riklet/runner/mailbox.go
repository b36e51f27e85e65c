package runner

import (
	"sync"

	"rik.dev/rik/internal/wakeup"
)

// mailbox receives work for one goroutine from all others.
type mailbox struct {
	wake wakeup.Signal // set after a post

	mu    sync.Mutex // guards inbox
	inbox []func()
}

func newMailbox() mailbox { return mailbox{wake: wakeup.New()} }

// post sends work to the mailbox's goroutine. It never blocks.
func (b *mailbox) post(work func()) {
	b.mu.Lock()
	b.inbox = append(b.inbox, work)
	b.mu.Unlock()
	b.wake.Wake()
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
