package instance

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// calmLevel is where the messages of calm go: Kubernetes' level for debugging.
const calmLevel = 4

// calm is a log in which errors are for debugging only. The WebSocket library
// reads from the client until the connection ends, and has no way to be told
// that this side is about to end it: every session that ends well would leave
// an error. How a session ended is told to the client, by its status.
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

// calmly makes the context's log calm.
func calmly(ctx context.Context) context.Context {
	return klog.NewContext(ctx, klog.FromContext(ctx).WithSink(calm{klog.FromContext(ctx).GetSink()}))
}
