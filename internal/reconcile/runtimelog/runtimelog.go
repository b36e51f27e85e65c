// Package runtimelog sets the logger of controller-runtime.
package runtimelog

import (
	"log/slog"
	"sync"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

var once sync.Once

// Set makes controller-runtime log to l. There is one logger per process, and the first call
// decides. Unlike log.SetLogger, Set is safe for concurrent use. That is necessary because a
// process runs several controllers, and each of them calls Set.
func Set(l *slog.Logger) {
	once.Do(func() { log.SetLogger(logr.FromSlogHandler(l.Handler())) })
}
