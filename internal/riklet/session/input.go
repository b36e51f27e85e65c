package session

import "sync"

// maxInput is how much input waits for an instance that does not read it. A resize of the
// terminal passes that much input. After it the session's stream is not read, so that HTTP/2
// stops the user.
const maxInput = 64 << 10

// input passes the user's data to its reader. It is an io.Reader for one reader at a time.
type input struct {
	mu      sync.Mutex
	changed sync.Cond
	buffer  []byte
	err     error // returned after the buffer
}

func newInput() *input {
	i := &input{}
	i.changed.L = &i.mu
	return i
}

// put adds data, when there is room. It drops data after the end.
func (i *input) put(data []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.buffer) >= maxInput && i.err == nil {
		i.changed.Wait()
	}
	if i.err == nil {
		i.buffer = append(i.buffer, data...)
		i.changed.Broadcast()
	}
}

// end makes Read return err after the data. Only the first call has an effect.
func (i *input) end(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err == nil {
		i.err = err
		i.changed.Broadcast()
	}
}

// Read implements io.Reader.
func (i *input) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.buffer) == 0 {
		if i.err != nil {
			return 0, i.err
		}
		i.changed.Wait()
	}
	n := copy(p, i.buffer)
	if i.buffer = i.buffer[n:]; len(i.buffer) == 0 {
		i.buffer = nil // frees the array
	}
	i.changed.Broadcast()
	return n, nil
}
