// Package output collects what is written while a test reads it.
package output

import (
	"bytes"
	"sync"
)

// Buffer is a log, or what a command prints. Its zero value is empty; any goroutine may
// write to it and read it at any time.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends p. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String is all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
