package fetch

import (
	"context"
	"fmt"
	"io"
	"sync"
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
		return open(ctx, p.req, p.budget)
	}
	done := p.watch.waiting()
	src, sys, err := open(ctx, p.req, p.budget)
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

// reportEvery is how often the store is told of the progress.
const reportEvery = time.Second

// report tells the store how much was transferred until stop is called.
func (p *puller) report(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		ticker := time.NewTicker(reportEvery)
		defer ticker.Stop()
		for last := int64(-1); ; {
			now := wire.Progress{Bytes: p.transferred.Load(), Total: p.total.Load()}
			if now.Bytes != last {
				last = now.Bytes
				_ = p.out.send(wire.Event{Progress: &now}) // the end of the pipe ends the pull anyway
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	return func() {
		cancel()
		group.Wait()
	}
}
