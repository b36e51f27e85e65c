package command

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// outputs copies the output of a command until the command has ended. A background process that
// the command started may hold the pipes open forever. So outputs copies only what is in a pipe
// when the command ends, and nothing that is written later.
type outputs struct {
	readers, writers []*os.File
	copies           sync.WaitGroup
}

// pipe returns the end of a pipe that a command writes to, or nil if there is no sink.
func (o *outputs) pipe(sink io.Writer) (*os.File, error) {
	if sink == nil {
		return nil, nil //nolint:nilnil // documented
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o.readers, o.writers = append(o.readers, r), append(o.writers, w)
	o.copies.Go(func() { copyOutput(sink, r) })
	return w, nil
}

// started closes this process's copies of the write ends.
func (o *outputs) started() {
	for _, w := range o.writers {
		_ = w.Close()
	}
}

// ended copies what remains after the command's end. It returns when the sinks have accepted it
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

// stopReading makes the copies read what is available, without waiting for more.
func stopReading(files ...*os.File) {
	for _, f := range files {
		_ = f.SetReadDeadline(time.Now())
	}
}

// copyOutput copies until the end of a pipe or terminal, or until stopReading.
func copyOutput(sink io.Writer, from *os.File) {
	_, err := io.Copy(sink, from)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 32<<10)
	for total := 0; total < maxRemaining; {
		n := 0
		_ = raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) })
		if n <= 0 {
			return
		}
		if _, err := sink.Write(buf[:n]); err != nil {
			return
		}
		total += n
	}
}

// maxRemaining is the maximum size of a pipe for an unprivileged process
// (/proc/sys/fs/pipe-max-size).
const maxRemaining = 1 << 20
