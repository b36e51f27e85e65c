// Package wakeup wakes a goroutine that waits for something to do.
package wakeup

// Signal is a request to look again. It is kept until the goroutine receives from it, also if the
// goroutine is busy. Several requests count as one. The goroutine receives as from any channel,
// usually in a select. A nil Signal is never received, and Wake does nothing.
type Signal chan struct{}

// New returns a Signal without a request.
func New() Signal { return make(Signal, 1) }

// Wake requests another look. It does not block, and any goroutine may call it.
func (s Signal) Wake() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Clear drops the request, and reports whether there was one. It does not block.
func (s Signal) Clear() bool {
	select {
	case <-s:
		return true
	default:
		return false
	}
}
