package apiserver

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"rik.dev/rik/internal/apiserver/clientlog"
)

// kubernetesLog is the destination of Kubernetes' own messages. klog's logger belongs to the
// whole process and may not be replaced once goroutines use it. It is therefore set before
// there are any, and only the handler behind it changes: to the log of the first server of the
// process.
var kubernetesLog struct {
	handler atomic.Pointer[slog.Handler]
	once    sync.Once
}

func init() {
	klog.SetLoggerWithOptions(logr.FromSlogHandler(quieter{late{}}), klog.ContextualLogger(true), klog.WriteKlogBuffer(writeFormatted))
	klog.OsExit = func(code int) {
		if code == klogFatal {
			code = 1 // the code of every other fatal error
		}
		os.Exit(code)
	}
}

// klogFatal is the exit code of klog.Fatal.
const klogFatal = 255

// writeFormatted writes the formatted messages of Kubernetes' libraries as klog itself would.
// The exception is a fatal error, which klog passes on as information before it ends the
// process.
func writeFormatted(line []byte) {
	level, text := parseFormatted(line)
	if level == levelFatal {
		sayFatal(late{}, os.Stderr, text)
		return
	}
	slog.New(quieter{late{}}).Log(context.Background(), level, text)
}

// levelFatal is above every level in use.
const levelFatal = slog.LevelError + 4

// parseFormatted parses a line in klog's form:
//
//	Lmmdd hh:mm:ss.uuuuuu threadid file:line] message
func parseFormatted(line []byte) (slog.Level, string) {
	text := strings.TrimSpace(string(line))
	head, message, found := strings.Cut(text, "] ")
	if !found || head == "" {
		return slog.LevelInfo, text
	}
	switch head[0] {
	case 'F':
		return levelFatal, message
	case 'E':
		return slog.LevelError, message
	default:
		return slog.LevelInfo, message // and warnings, which klog passes on as information
	}
}

// sayFatal reports why the process is about to end. It uses the log, or the standard error if
// there is no log yet.
func sayFatal(log slog.Handler, otherwise io.Writer, text string) {
	const message = "a fatal error in a Kubernetes library ends the process"
	if !log.Enabled(context.Background(), slog.LevelError) {
		_, _ = fmt.Fprintf(otherwise, "%s: %s\n", message, text)
		return
	}
	slog.New(log).Error(message, "err", text)
}

func redirectKlog(logger *slog.Logger) {
	kubernetesLog.once.Do(func() {
		handler := logger.With("component", "kubernetes").Handler()
		kubernetesLog.handler.Store(&handler)
		clientlog.Set(logger.With("component", "etcd-client").Handler())
	})
}

// late looks up the current handler for every message. It stores the additions of a derived
// logger and applies them then.
type late struct {
	derive []func(slog.Handler) slog.Handler
}

func (l late) current() slog.Handler {
	stored := kubernetesLog.handler.Load()
	if stored == nil {
		return slog.DiscardHandler
	}
	handler := *stored
	for _, derive := range l.derive {
		handler = derive(handler)
	}
	return handler
}

func (l late) with(derive func(slog.Handler) slog.Handler) late {
	return late{derive: append(slices.Clone(l.derive), derive)}
}

// Enabled implements slog.Handler. A derived handler has the level of its root.
func (l late) Enabled(ctx context.Context, level slog.Level) bool {
	stored := kubernetesLog.handler.Load()
	return stored != nil && (*stored).Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l late) Handle(ctx context.Context, record slog.Record) error {
	return l.current().Handle(ctx, record)
}

// WithAttrs implements slog.Handler.
func (l late) WithAttrs(attrs []slog.Attr) slog.Handler {
	return l.with(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (l late) WithGroup(name string) slog.Handler {
	return l.with(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

// quieter logs Kubernetes' information as debug messages and its errors as warnings. Most of
// the errors are retried, and fatal ones are also returned as errors.
type quieter struct{ next slog.Handler }

func lower(level slog.Level) slog.Level {
	switch {
	case level >= slog.LevelError:
		return slog.LevelWarn
	case level >= slog.LevelWarn:
		return slog.LevelInfo
	default:
		return min(level, slog.LevelDebug)
	}
}

// Enabled implements slog.Handler.
func (q quieter) Enabled(ctx context.Context, level slog.Level) bool {
	return q.next.Enabled(ctx, lower(level))
}

// Handle implements slog.Handler.
func (q quieter) Handle(ctx context.Context, record slog.Record) error {
	record.Level = lower(record.Level)
	if isNoise(record) {
		record.Level = slog.LevelDebug
	}
	if !q.next.Enabled(ctx, record.Level) {
		return nil
	}
	return q.next.Handle(ctx, record)
}

// isNoise reports whether a record is an expected error. Some occur at every start and stop: a
// metrics option that is not set, and controllers that are canceled during their work. Others
// can be caused by unknown clients.
//
//prose:foreign
func isNoise(record slog.Record) bool {
	switch record.Message {
	case "The manifest file is empty, ignoring.", "Unable to sync caches":
		return true
	case "Unable to authenticate the request":
		// Any client can cause this, at any rate. The audit log contains some of them.
		return true
	}
	noise := false
	record.Attrs(func(attr slog.Attr) bool {
		noise = attr.Key == "err" && strings.Contains(attr.Value.String(), context.Canceled.Error())
		return !noise
	})
	return noise
}

// WithAttrs implements slog.Handler.
func (q quieter) WithAttrs(attrs []slog.Attr) slog.Handler { return quieter{q.next.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (q quieter) WithGroup(name string) slog.Handler { return quieter{q.next.WithGroup(name)} }
