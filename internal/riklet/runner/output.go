package runner

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// outputs carry what a command writes, until the command has ended. A process that it left
// behind may hold its pipes open for ever: what is in a pipe when the command ends is still
// carried, and nothing that is written later.
type outputs struct {
	readers, writers []*os.File
	copies           sync.WaitGroup
}

// pipe gives the end of a pipe that a command writes to; nil for nobody who reads.
func (o *outputs) pipe(sink io.Writer) (*os.File, error) {
	if sink == nil {
		return nil, nil //nolint:nilnil // documented
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o.readers, o.writers = append(o.readers, r), append(o.writers, w)
	o.copies.Go(func() { carry(sink, r) })
	return w, nil
}

// started closes our own ends of what the command writes to.
func (o *outputs) started() {
	for _, w := range o.writers {
		_ = w.Close()
	}
}

// ended carries what is left after the command's end. It returns when the reader has taken it
// or when ctx ends.
func (o *outputs) ended(ctx context.Context) {
	stopReading(o.readers...)
	done := make(chan struct{})
	go func() { o.copies.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
	for _, r := range o.readers {
		_ = r.Close()
	}
}

// stopReading has the copies read what is there, and wait for nothing more.
func stopReading(files ...*os.File) {
	for _, f := range files {
		_ = f.SetReadDeadline(time.Now())
	}
}

// carry copies until the end of a pipe or terminal, or until stopReading.
func carry(sink io.Writer, from *os.File) {
	_, err := io.Copy(sink, from)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 32<<10)
	for total := 0; total < restAtMost; {
		n := 0
		_ = raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) }) //nolint:gosec // a descriptor; non-blocking
		if n <= 0 {
			return
		}
		if _, err := sink.Write(buf[:n]); err != nil {
			return
		}
		total += n
	}
}

// restAtMost is what a pipe holds at most for a process without privilege
// (/proc/sys/fs/pipe-max-size).
const restAtMost = 1 << 20
