package fetch

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// watch cancels a pull if the registry sends nothing for too long. Only the waiting times count,
// so a slow disk does not stall a pull. A nil watch does nothing.
type watch struct {
	limit  time.Duration
	cancel context.CancelCauseFunc
}

// waiting starts the timer for a wait, and done stops it.
func (w *watch) waiting() (done func()) {
	if w == nil {
		return func() {}
	}
	timer := time.AfterFunc(w.limit, func() {
		w.cancel(fmt.Errorf("%w: the registry sent nothing for %s", wire.ErrStalled, w.limit))
	})
	return func() { timer.Stop() }
}

// open opens the source. It does not watch sources on this machine, because unpacking an archive
// may take long.
func (p *puller) open(ctx context.Context) (*source, *types.SystemContext, error) {
	if p.req.Transport != "docker" {
		p.watch = nil
		return open(ctx, p.req, p.budget, &p.meter)
	}
	done := p.watch.waiting()
	src, sys, err := open(ctx, p.req, p.budget, &p.meter)
	done()
	if err == nil {
		src.transport = watched{src.transport, p.watch}
	}
	return src, sys, err
}

// watched is a transport whose answers are watched.
type watched struct {
	transport
	watch *watch
}

// GetManifest implements transport.
func (w watched) GetManifest(ctx context.Context, instance *digest.Digest) ([]byte, string, error) {
	defer w.watch.waiting()()
	return w.transport.GetManifest(ctx, instance)
}

// GetBlob implements transport.
func (w watched) GetBlob(ctx context.Context, info types.BlobInfo, cache types.BlobInfoCache) (io.ReadCloser, int64, error) {
	done := w.watch.waiting()
	body, size, err := w.transport.GetBlob(ctx, info, cache)
	done()
	if err != nil {
		return nil, 0, err
	}
	return watchedBody{body, w.watch}, size, nil
}

type watchedBody struct {
	io.ReadCloser
	watch *watch
}

// Read implements io.Reader.
func (b watchedBody) Read(p []byte) (int, error) {
	defer b.watch.waiting()()
	return b.ReadCloser.Read(p)
}

// meter counts the progress of a step. It is safe for concurrent use.
type meter struct {
	mu    sync.Mutex
	now   wire.Progress
	bytes atomic.Int64
}

// begin starts a step. A total of 0 means unknown.
func (m *meter) begin(step string, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = wire.Progress{Step: step, Total: total}
	m.bytes.Store(0)
}

func (m *meter) progress() wire.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now
	now.Bytes = m.bytes.Load()
	return now
}

// file counts the bytes read from a file, at any offset.
func (m *meter) file(f *os.File) *meteredFile { return &meteredFile{f, m} }

// writer counts the bytes written to it.
func (m *meter) writer() io.Writer { return meterWriter{m} }

type meterWriter struct{ meter *meter }

// Write implements io.Writer.
func (w meterWriter) Write(p []byte) (int, error) {
	w.meter.bytes.Add(int64(len(p)))
	return len(p), nil
}

type meteredFile struct {
	file  *os.File
	meter *meter
}

// Read implements io.Reader.
func (f *meteredFile) Read(p []byte) (int, error) {
	n, err := f.file.Read(p)
	f.meter.bytes.Add(int64(n))
	return n, err
}

// ReadAt implements io.ReaderAt.
func (f *meteredFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.file.ReadAt(p, off)
	f.meter.bytes.Add(int64(n))
	return n, err
}

// reportInterval is the interval of progress reports to the store.
const reportInterval = time.Second

// report sends the progress to the store until the caller calls stop.
func (m *meter) report(ctx context.Context, out *sender) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		ticker := time.NewTicker(reportInterval)
		defer ticker.Stop()
		for last := (wire.Progress{}); ; {
			over := ctx.Err() != nil
			if now := m.progress(); now != last {
				last = now
				_ = out.send(wire.Event{Progress: &now}) // a closed pipe ends the pull anyway
			}
			if over {
				return
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	return func() {
		cancel()
		group.Wait()
	}
}
