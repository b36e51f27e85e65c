// Package progress tells how far long work of the node is: pulls, downloads, unpacking and the
// making of disk images. Who does the work notes it in a Work, which travels in the context;
// who waits for the work reports it with Watch.
package progress

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Progress is how far a piece of work is.
type Progress struct {
	What  string        // such as "pulling nginx:1.27"; "" while nothing was begun
	Step  string        // a part of it, such as "reading the archive"; may be empty
	From  string        // who is to send the bytes, such as "the registry"; "" when they are here
	Bytes int64         // done
	Total int64         // to do; 0: not known
	Idle  time.Duration // since the last byte
	Stall time.Duration // the Idle at which the work is given up; 0: it is not

	// Trouble is what made the work begin a transfer again; may be empty.
	Trouble string
}

// idleShown is from when on it is said that nothing comes.
const idleShown = 10 * time.Second

// String says it to people.
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

// Work is where a piece of work notes its progress. Its methods may be called at once, and do
// nothing on a nil Work.
type Work struct {
	mu     sync.Mutex
	now    Progress // but for Idle
	seen   time.Time
	sample func() int64 // how many bytes are done; nil: as noted
	inner  *Work        // what the work waits for
}

// Begin starts a piece of work, whose bytes somebody else sends.
func (w *Work) Begin(p Progress) {
	w.change(func() { w.now, w.sample, w.inner = p, nil, nil })
}

// Step starts a part of the work whose bytes are on this machine. Sample, when it is not nil,
// tells how many of them are done.
func (w *Work) Step(step string, total int64, sample func() int64) {
	w.change(func() {
		w.now, w.sample, w.inner = Progress{What: w.now.What, Step: step, Total: total}, sample, nil
	})
}

// Add notes more bytes.
func (w *Work) Add(n int64) { w.change(func() { w.now.Bytes += n }) }

// Set notes how many bytes are done, and of how many.
func (w *Work) Set(bytes, total int64) { w.change(func() { w.now.Bytes, w.now.Total = bytes, total }) }

// Trouble notes why a transfer was begun again.
func (w *Work) Trouble(text string) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now.Trouble = text // no byte came: Idle goes on
}

// Follow says that the work is the other one's from now on, until the next Begin or Step.
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

// Progress is how far the work is.
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

// With gives the work in ctx a place to note its progress.
func With(ctx context.Context, w *Work) context.Context { return context.WithValue(ctx, key{}, w) }

// Of is where the work in ctx notes its progress; nil when nobody wants to know.
func Of(ctx context.Context) *Work {
	w, _ := ctx.Value(key{}).(*Work)
	return w
}

const (
	// first is when work is first reported: what takes less is not worth a write to the
	// datastore. every is how often from then on.
	first    = 3 * time.Second
	interval = 10 * time.Second
)

// Watch does work, and reports its progress if it takes longer than a few seconds, then again
// and again until it ends. Report may be nil; it is called by one goroutine, and not after
// Watch has returned.
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
