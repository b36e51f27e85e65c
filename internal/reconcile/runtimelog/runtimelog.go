// Package runtimelog gives controller-runtime the logger of this process.
package runtimelog

import (
	"log/slog"
	"sync"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

var once sync.Once

// Set has controller-runtime log to l. There is one logger per process, and the first
// call decides. It may be called by any goroutine, which log.SetLogger may not: a
// process runs several controllers, each of which sets it.
func Set(l *slog.Logger) {
	once.Do(func() { log.SetLogger(logr.FromSlogHandler(l.Handler())) })
}
