package runner

import (
	"context"
	"sync"
)

// work is what a machine does in other goroutines.
type work struct {
	runCtx     context.Context // the context of Run
	startCtx   context.Context // the context of everything that a stop interrupts
	stopStarts context.CancelCauseFunc
	starts     int // operations under startCtx
	tasks      sync.WaitGroup
}

// begin sets the contexts when run begins.
func (w *work) begin(ctx context.Context) {
	w.runCtx = ctx
	w.startCtx, w.stopStarts = context.WithCancelCause(ctx)
}

// task runs work in another goroutine and posts the function that work returns.
func (m *machine) task(work func() (done func())) {
	m.tasks.Go(func() {
		if done := work(); done != nil {
			m.post(done)
		}
	})
}

// startTask is task for an operation that a stop interrupts: its ctx ends, and the teardown waits
// for it.
func (m *machine) startTask(operation func(ctx context.Context) (done func())) {
	m.starts++
	ctx := m.startCtx
	m.task(func() func() {
		done := operation(ctx)
		return func() {
			m.starts--
			done()
		}
	})
}
