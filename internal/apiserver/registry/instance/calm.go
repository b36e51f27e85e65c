package instance

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// calmLevel is the level of calm's messages: Kubernetes' level for debugging.
const calmLevel = 4

// calm is a log that turns errors into debug messages. The WebSocket library reads from the
// client until the connection ends, and cannot be informed that this side is about to end it.
// Every successful session would therefore log an error. The client receives the result of a
// session in its status.
type calm struct{ logr.LogSink }

// Error implements logr.LogSink.
func (c calm) Error(err error, message string, pairs ...any) {
	if c.Enabled(calmLevel) {
		c.Info(calmLevel, message, append(pairs[:len(pairs):len(pairs)], "err", err)...)
	}
}

// WithValues implements logr.LogSink.
func (c calm) WithValues(pairs ...any) logr.LogSink { return calm{c.LogSink.WithValues(pairs...)} }

// WithName implements logr.LogSink.
func (c calm) WithName(name string) logr.LogSink { return calm{c.LogSink.WithName(name)} }

// calmly returns a context with a calm log.
func calmly(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.FromContext(ctx).WithSink(calm{klog.FromContext(ctx).GetSink()}))
}
