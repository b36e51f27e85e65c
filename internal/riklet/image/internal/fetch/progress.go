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

// watch gives a pull up when the registry says nothing for too long. Only the waits count: a
// slow disk is no stall. Nil watches nothing.
type watch struct {
	limit  time.Duration
	cancel context.CancelCauseFunc
}

// waiting begins a wait, which done ends.
func (w *watch) waiting() (done func()) {
	if w == nil {
		return func() {}
	}
	timer := time.AfterFunc(w.limit, func() {
		w.cancel(fmt.Errorf("%w: the registry sent nothing for %s", wire.ErrStalled, w.limit))
	})
	return func() { timer.Stop() }
}

// open opens the source. What is on this machine is not watched: unpacking an archive may
// take its time.
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

// watched is a transport whose answers are waited for under a watch.
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

// meter is how much of a step is done. All its methods may be called at once.
type meter struct {
	mu    sync.Mutex
	now   wire.Progress
	bytes atomic.Int64
}

// begin starts a step; 0: its total is not known.
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

// file counts what is read of a file, from wherever in it.
func (m *meter) file(f *os.File) *meteredFile { return &meteredFile{f, m} }

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

// reportInterval is how often the store is told of the progress.
const reportInterval = time.Second

// report tells the store how much is done until stop is called.
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
				_ = out.send(wire.Event{Progress: &now}) // the end of the pipe ends the pull anyway
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
