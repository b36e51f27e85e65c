package etcd

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
)

// authMessage is a warning at every start about etcd's own users, which are not used.
const authMessage = "simple token is not cryptographically signed"

// A server with a new store may look up the term before the first batch of writes has stored
// it. It tries again after 4 s. With another cause, the same message is an error.
//
//prose:foreign
const (
	storageVersionMessage = "failed to update storage version"
	noTermYet             = "missing term information"
)

// harmless reports whether an entry is about a temporary problem, or about a feature that is
// not used.
func harmless(message string, fields []zapcore.Field) bool {
	switch message {
	case authMessage:
		return true
	case storageVersionMessage:
		return slices.ContainsFunc(fields, func(f zapcore.Field) bool {
			err, ok := f.Interface.(error)
			return ok && strings.HasSuffix(err.Error(), noTermYet)
		})
	}
	return false
}

// core passes etcd's log entries to slog. etcd's information is logged only as debug messages.
// Warnings and errors keep their level.
type core struct {
	handler slog.Handler
	// closing turns every entry into a debug message, because etcd reports each listener that it
	// closes as an error.
	closing *atomic.Bool
}

func newCore(logger *slog.Logger, closing *atomic.Bool) zapcore.Core {
	return core{handler: logger.With("component", "etcd").Handler(), closing: closing}
}

// Enabled implements zapcore.LevelEnabler.
func (c core) Enabled(level zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), c.slogLevel(level))
}

// With implements zapcore.Core.
func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{handler: c.handler.WithAttrs(attrs(fields)), closing: c.closing}
}

// Check implements zapcore.Core.
func (c core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level := c.slogLevel(entry.Level)
	if harmless(entry.Message, fields) {
		level = slog.LevelDebug
	}
	if !c.handler.Enabled(context.Background(), level) {
		return nil
	}
	record := slog.NewRecord(entry.Time, level, entry.Message, 0)
	record.AddAttrs(attrs(fields)...)
	return c.handler.Handle(context.Background(), record)
}

// Sync implements zapcore.Core. slog does not buffer.
func (c core) Sync() error { return nil }

func (c core) slogLevel(level zapcore.Level) slog.Level {
	switch {
	case c.closing.Load():
		return slog.LevelDebug
	case level >= zapcore.ErrorLevel:
		return slog.LevelError
	case level == zapcore.WarnLevel:
		return slog.LevelWarn
	default:
		return slog.LevelDebug
	}
}

// attrs uses zap's own map encoder, because a field stores its value in one of three places,
// depending on its type.
func attrs(fields []zapcore.Field) []slog.Attr {
	out := make([]slog.Attr, 0, len(fields))
	for _, field := range fields {
		encoder := zapcore.NewMapObjectEncoder()
		field.AddTo(encoder)
		for key, value := range encoder.Fields {
			out = append(out, slog.Any(key, value))
		}
	}
	return out
}
