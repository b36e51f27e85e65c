// Package progress reports the progress of long work on the node: pulls, downloads, unpacking and
// the creation of block images. The code that does the work records its progress in a Work, which
// the context carries. The code that waits for the work reports the progress with Watch.
package progress

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Progress is the progress of a piece of work.
type Progress struct {
	What  string        // such as "pulling nginx:1.27"; "" while nothing was begun
	Step  string        // a part of it, such as "reading the archive"; may be empty
	From  string        // who is to send the bytes, such as "the registry"; "" when they are here
	Bytes int64         // done
	Total int64         // to do; 0 if unknown
	Idle  time.Duration // since the last byte
	Stall time.Duration // the Idle after which the work fails; 0 if it has no limit

	// Trouble is why a transfer was restarted. It may be empty.
	Trouble string
}

// idleShown is the time without data after which String mentions it.
const idleShown = 10 * time.Second

// String returns the progress as text for an operator.
func (p Progress) String() string {
	text := p.What
	if p.Step != "" {
		text += ": " + p.Step
	}
	switch {
	case p.Total > 0:
		text += ": " + mebibytes(p.Bytes) + " of " + mebibytes(p.Total)
	case p.Bytes > 0:
		text += ": " + mebibytes(p.Bytes)
	case p.From != "":
		text += ": waiting for " + p.From
	}
	if p.Trouble != "" {
		text += "; " + p.Trouble
	}
	if p.Stall == 0 || p.Idle < idleShown {
		return text
	}
	return fmt.Sprintf("%s; no data for %s (limit %s)", text, p.Idle.Round(time.Second), p.Stall)
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// Work records the progress of a piece of work. Its methods are safe for concurrent use, and do
// nothing on a nil Work.
type Work struct {
	mu     sync.Mutex
	now    Progress // without Idle
	seen   time.Time
	sample func() int64 // how many bytes are done; nil: use now.Bytes
	inner  *Work        // the work that this work waits for
}

// Begin starts a piece of work whose bytes come from another machine.
func (w *Work) Begin(p Progress) {
	w.change(func() { w.now, w.sample, w.inner = p, nil, nil })
}

// Step starts a part of the work whose bytes are on this machine. If sample is not nil, it returns
// how many bytes are done.
func (w *Work) Step(step string, total int64, sample func() int64) {
	w.change(func() {
		w.now, w.sample, w.inner = Progress{What: w.now.What, Step: step, Total: total}, sample, nil
	})
}

// Add adds to the bytes that are done.
func (w *Work) Add(n int64) { w.change(func() { w.now.Bytes += n }) }

// Set sets how many bytes are done, and the total.
func (w *Work) Set(bytes, total int64) { w.change(func() { w.now.Bytes, w.now.Total = bytes, total }) }

// Trouble records why a transfer was restarted.
func (w *Work) Trouble(text string) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now.Trouble = text // no byte arrived, so Idle continues to grow
}

// Follow makes w report the progress of other until the next Begin or Step.
func (w *Work) Follow(other *Work) { w.change(func() { w.inner = other }) }

func (w *Work) change(how func()) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	how()
	w.seen = time.Now()
}

// Progress returns the current progress.
func (w *Work) Progress() Progress {
	if w == nil {
		return Progress{}
	}
	w.mu.Lock()
	p, inner, sample := w.now, w.inner, w.sample
	p.Idle = time.Since(w.seen)
	w.mu.Unlock()
	if inner != nil {
		if q := inner.Progress(); q.What != "" {
			return q
		}
	}
	if sample != nil {
		p.Bytes = sample()
	}
	return p
}

type key struct{}

// With returns a context with a Work, in which the work in ctx records its progress.
func With(ctx context.Context, w *Work) context.Context { return context.WithValue(ctx, key{}, w) }

// Of returns the Work in ctx. It is nil if nothing reports the progress.
func Of(ctx context.Context) *Work {
	w, _ := ctx.Value(key{}).(*Work)
	return w
}

const (
	// first is the time after which work is first reported. Shorter work is not worth a write to
	// the datastore. every is the interval of later reports.
	first    = 3 * time.Second
	interval = 10 * time.Second
)

// Watch does work, and reports its progress at intervals if it takes longer than a few seconds.
// report may be nil. It is called by one goroutine, and not after Watch has returned.
func Watch(ctx context.Context, report func(Progress), do func(ctx context.Context) error) error {
	if report == nil {
		return do(ctx)
	}
	w := &Work{}
	ended := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		next := time.NewTimer(first)
		defer next.Stop()
		for {
			select {
			case <-ended:
				return
			case <-next.C:
			}
			if p := w.Progress(); p.What != "" {
				report(p)
			}
			next.Reset(interval)
		}
	})
	defer group.Wait()
	defer close(ended)
	return do(With(ctx, w))
}
