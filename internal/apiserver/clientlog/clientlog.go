// Package clientlog passes the messages of the API server's etcd clients to rik's log. Without it
// they appear as JSON on the standard error, whatever the format and level of the log are.
//
// Kubernetes creates the logger of these clients when its package factory is initialized, from
// etcd's default configuration, and has no setting for it. This package changes the configuration
// before that: Go initializes packages in the order of their import paths as soon as their imports
// are initialized. The factory imports packages of sigs.k8s.io, which come after this one. The test
// fails if that changes. Therefore this package must import no others than those below.
package clientlog

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/logutil"
	"go.uber.org/zap"
)

// scheme is that of the URL that leads to this package.
const scheme = "rik-log"

// handler gets the messages. It is nil before Set.
var handler atomic.Pointer[slog.Handler]

func init() {
	if err := zap.RegisterSink(scheme, func(*url.URL) (zap.Sink, error) { return sink{}, nil }); err != nil {
		panic("programmer error: " + err.Error())
	}
	logutil.DefaultZapLoggerConfig.OutputPaths = []string{scheme + ":"}
}

// Set sets the handler of all messages in this process. Messages before the first call are
// discarded.
func Set(h slog.Handler) { handler.Store(&h) }

// sink passes lines of JSON to the handler.
type sink struct{}

// message is a line.
type message struct {
	Level   slog.Level `json:"level"`
	Message string     `json:"msg"`
	Target  string     `json:"target"`
	Method  string     `json:"method"`
	Error   string     `json:"error"`
}

// Write implements zap.Sink. It never fails: a message that cannot be parsed is logged as it is.
func (sink) Write(line []byte) (int, error) {
	h := handler.Load()
	if h == nil {
		return len(line), nil
	}
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		m = message{Level: slog.LevelWarn, Message: strings.TrimSpace(string(line))}
	}
	level := levelOf(m)
	if !(*h).Enabled(context.Background(), level) {
		return len(line), nil
	}
	record := slog.NewRecord(time.Now(), level, m.Message, 0)
	for key, value := range map[string]string{"target": m.Target, "method": m.Method, "err": m.Error} {
		if value != "" {
			record.AddAttrs(slog.String(key, value))
		}
	}
	_ = (*h).Handle(context.Background(), record)
	return len(line), nil
}

// levelOf returns the level of a message. The clients' information is for debugging. So is a
// request that its caller has canceled: that happens whenever a watch or the server ends.
func levelOf(m message) slog.Level {
	if m.Level < slog.LevelWarn || strings.Contains(m.Error, context.Canceled.Error()) {
		return slog.LevelDebug
	}
	return m.Level
}

// Sync implements zap.Sink. slog does not buffer.
func (sink) Sync() error { return nil }

// Close implements zap.Sink.
func (sink) Close() error { return nil }
