package etcd

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"rik.dev/rik/internal/apiserver/datastore/checksum"
)

// startFailure turns a fatal error of etcd during its start into the error of the start. By itself
// etcd panics or exits, in some goroutine, and shows a stack trace for a cause such as a full
// disk. Once etcd runs, it still does so, because it must not confirm a write that it cannot
// store.
type startFailure struct {
	// state changes once, from starting to one of the others.
	state atomic.Int32
	// reported delivers the reason if the state is gaveUp.
	reported chan error
}

const (
	starting = iota
	gaveUp
	runs
)

func newStartFailure() *startFailure { return &startFailure{reported: make(chan error, 1)} }

// running ends the start. It returns false if etcd gave up before.
func (g *startFailure) running() bool { return g.state.CompareAndSwap(starting, runs) }

// options returns options for etcd's logger, because etcd gives up through log entries.
func (g *startFailure) options() []zap.Option {
	return []zap.Option{
		zap.WithPanicHook(startFailureHook{g, zapcore.WriteThenPanic}),
		zap.WithFatalHook(startFailureHook{g, zapcore.WriteThenFatal}),
	}
}

type startFailureHook struct {
	*startFailure
	otherwise zapcore.CheckWriteHook
}

// OnWrite implements zapcore.CheckWriteHook. It does not return.
func (h startFailureHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	if h.state.CompareAndSwap(starting, gaveUp) {
		h.reported <- reason(entry.Message, fields)
	}
	if h.state.Load() == runs {
		h.otherwise.OnWrite(entry, fields)
	}
	runtime.Goexit() // also for later errors that follow from the first
}

func reason(message string, fields []zapcore.Field) error {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			return fmt.Errorf("%s: %w", message, err)
		}
	}
	return errors.New(message)
}

// explain adds the next step to the error of a failed start.
func explain(dir string, err error) error {
	next := "if its files are damaged, " + restore(dir)
	switch {
	case errors.Is(err, syscall.ENOSPC):
		next = "free 100 MB or more on that disk: etcd's log alone needs 64 MB from the first start"
	case errors.Is(err, errFiles):
		next = restore(dir)
	case errors.Is(err, checksum.ErrObjects):
		next = checksum.Next
	}
	return fmt.Errorf("starting the embedded etcd in %s: %w; next: %s", dir, err, next)
}

func restore(dir string) string {
	return "restore the data directory from a copy that was created while the server was stopped. Without a copy the cluster's objects are lost: move " + dir + " away, and start once with --new-cluster, which begins an empty cluster"
}
