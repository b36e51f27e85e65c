package pod

import (
	"bytes"
	"os"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
)

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

func readFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	return string(data), err
}

// lockedBuffer may be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
