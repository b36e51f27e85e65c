package session

import (
	"context"
	"sync"
)

// grantAt is how much data is consumed before credit is granted. It keeps the number of messages
// low, and the peer does not run out of credit while its data is read.
const grantAt = Window / 4

// outflow counts how much may still be sent.
type outflow struct {
	mu     sync.Mutex
	credit int64
	more   chan struct{} // one token after each grant
}

func newOutflow() *outflow {
	return &outflow{credit: Window, more: make(chan struct{}, 1)}
}

// grant adds credit. It caps absurdly large grants far above any possible use.
func (o *outflow) grant(n int64) {
	o.mu.Lock()
	o.credit = min(o.credit+min(n, 1<<40), 1<<40)
	o.mu.Unlock()
	o.signal()
}

func (o *outflow) signal() {
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// take waits for credit and takes at most want of it.
func (o *outflow) take(ctx context.Context, want int) (int, error) {
	for {
		o.mu.Lock()
		n := min(int64(want), o.credit)
		o.credit -= n
		left := o.credit > 0
		o.mu.Unlock()
		if n > 0 {
			if left {
				o.signal() // stdout and stderr share the credit
			}
			return int(n), nil
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-o.more:
		}
	}
}

// inflow holds received data until it is read. It is an io.Reader.
type inflow struct {
	grant func(int64) // sends credit to the peer; may block

	mu       sync.Mutex
	buffer   []byte
	held     int64 // bytes that the peer has no credit for yet
	consumed int64 // of held: read, and not yet granted again
	err      error // returned after the buffer
	more     chan struct{}
}

func newInflow(grant func(int64)) *inflow {
	return &inflow{grant: grant, more: make(chan struct{}, 1)}
}

func (i *inflow) signal() {
	select {
	case i.more <- struct{}{}:
	default:
	}
}

// put adds received data. It returns false if the peer had no credit for it. Data after the end
// is dropped.
func (i *inflow) put(data []byte) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil {
		return true
	}
	if i.held+int64(len(data)) > Window {
		return false
	}
	i.held += int64(len(data))
	i.buffer = append(i.buffer, data...)
	i.signal()
	return true
}

// end makes Read return err after the buffered data. Only the first call has an effect.
func (i *inflow) end(err error) {
	i.mu.Lock()
	if i.err == nil {
		i.err = err
	}
	i.mu.Unlock()
	i.signal()
}

// Read implements io.Reader for one reader at a time.
func (i *inflow) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, credit, err := i.next(p)
		if credit > 0 {
			i.grant(credit)
		}
		if n > 0 || err != nil {
			return n, err
		}
		<-i.more
	}
}

// next returns available data and the credit to grant.
func (i *inflow) next(p []byte) (n int, credit int64, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.buffer) == 0 {
		if i.err != nil {
			i.signal() // for the next Read
		}
		return 0, 0, i.err
	}
	n = copy(p, i.buffer)
	i.buffer = i.buffer[n:]
	if len(i.buffer) == 0 {
		i.buffer = nil // frees the array
	}
	i.consumed += int64(n)
	if i.consumed >= grantAt && i.err == nil {
		credit = i.consumed
		i.held -= credit
		i.consumed = 0
	}
	return n, credit, nil
}
