package excerpt

import (
	"bytes"
	"strings"
	"sync"
)

// Tail keeps the end of what is written to it, such as the output of a program. It is safe for
// concurrent use. Writes always succeed.
type Tail struct {
	limit int

	mu  sync.Mutex
	end []byte
}

// NewTail returns a Tail that keeps at most limit bytes.
func NewTail(limit int) *Tail { return &Tail{limit: limit} }

// Write implements io.Writer.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p[max(len(p)-t.limit, 0):]...)
	if over := len(t.end) - t.limit; over > 0 {
		t.end = append(t.end[:0], t.end[over:]...)
	}
	return len(p), nil
}

// String returns the end without space around it, as valid UTF-8. A question mark stands for
// bytes that do not belong to a character.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(bytes.TrimSpace(t.end)), "?")
}
