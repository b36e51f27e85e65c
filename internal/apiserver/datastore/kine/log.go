package kine

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rik.dev/rik/internal/excerpt"
)

// kine logs to the package-level logger of logrus. For a failed request it logs the whole
// request, with the content of the object that could not be written. A hook therefore receives
// its messages and drops those. An interceptor logs failed requests with only the key.

// aboutRequests are the prefixes of the messages that contain a request.
var aboutRequests = []string{"error in txn ", "error in put ", "error in compact ", "error while range on "}

// compacted ends the message about a watch that starts too early, which is no failure: the
// client receives the revision from which it can start.
var compacted = rpctypes.ErrGRPCCompacted.Error()

const (
	// maxMessage bounds the logged part of kine's other messages, in bytes.
	maxMessage = 1 << 10
	// repeatAfter is the interval at which one failure is logged while it lasts.
	repeatAfter = 10 * time.Second
	// maxFailures bounds the number of failures that are distinguished.
	maxFailures = 64
)

// forward is the hook. The first server of a process sets the destination of messages, because
// logrus has only one logger.
type forward struct{ logger *slog.Logger }

var forwarding sync.Once

// forwardLogs sends kine's warnings and errors to a logger.
func forwardLogs(logger *slog.Logger) {
	forwarding.Do(func() {
		logrus.SetLevel(logrus.WarnLevel)
		logrus.SetOutput(io.Discard)
		logrus.AddHook(forward{logger})
		logrus.StandardLogger().ExitFunc = exit
		// The driver prints each broken connection. The failed requests are logged.
		_ = mysql.SetLogger(&mysql.NopLogger{}) // fails only for nil
	})
}

// Levels implements logrus.Hook.
func (forward) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (f forward) Fire(e *logrus.Entry) error {
	if strings.HasSuffix(e.Message, compacted) {
		return nil
	}
	for _, prefix := range aboutRequests {
		if strings.HasPrefix(e.Message, prefix) {
			return nil
		}
	}
	level := slog.LevelError
	if e.Level >= logrus.WarnLevel {
		level = slog.LevelWarn
	}
	f.logger.Log(context.Background(), level, "SQL datastore", "message", cut(e.Message))
	if e.Level == logrus.FatalLevel && compacting.Load() == 0 {
		// kine ends the process, because it is not certain whether a transaction was stored.
		f.logger.Error("the SQL datastore ends the server; next: start it again. If it ends again, the database is damaged or its disk is full: free space, or restore the database and the data directory from a backup")
	}
	return nil
}

func cut(text string) string { return excerpt.Of(text, maxMessage) }

// failures logs failed requests: each kind of failure when it starts, and then at intervals
// with a count. It is safe for concurrent use.
type failures struct {
	logger *slog.Logger
	now    func() time.Time

	mu   sync.Mutex
	seen map[string]*failure
}

type failure struct {
	logged  time.Time
	skipped int
}

func newFailures(logger *slog.Logger) *failures {
	return &failures{logger: logger, now: time.Now, seen: map[string]*failure{}}
}

// intercept is a grpc.UnaryServerInterceptor.
func (f *failures) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	answer, err := handler(ctx, req)
	// A canceled request, and the error for a compacted revision, are not failures.
	if code := status.Code(err); err != nil && ctx.Err() == nil && code != codes.Canceled && code != codes.OutOfRange {
		f.report(info.FullMethod, keyOf(req), err)
		if code == codes.Unknown {
			// The error of a driver contains the address and user of the database. It must not
			// reach clients.
			err = status.Error(codes.Unknown, "the SQL datastore failed")
		}
	}
	return answer, err
}

func (f *failures) report(method, key string, err error) {
	text := cut(err.Error())
	f.mu.Lock()
	kind := method + " " + text
	known := f.seen[kind]
	if known == nil {
		if len(f.seen) >= maxFailures {
			clear(f.seen)
		}
		known = &failure{}
		f.seen[kind] = known
	}
	now := f.now()
	if !known.logged.IsZero() && now.Sub(known.logged) < repeatAfter {
		known.skipped++
		f.mu.Unlock()
		return
	}
	skipped := known.skipped
	known.logged, known.skipped = now, 0
	f.mu.Unlock()
	f.logger.Error("the SQL datastore refused a request", "method", method, "key", key, "err", text, "sameSince", skipped)
}

// keyOf returns the key of a request, and never its value.
func keyOf(req any) string {
	switch r := req.(type) {
	case *etcdserverpb.TxnRequest:
		for _, c := range r.GetCompare() {
			return cut(string(c.GetKey()))
		}
		for _, op := range r.GetSuccess() {
			if put := op.GetRequestPut(); put != nil {
				return cut(string(put.GetKey()))
			}
		}
	case *etcdserverpb.PutRequest:
		return cut(string(r.GetKey()))
	case *etcdserverpb.RangeRequest:
		return cut(string(r.GetKey()))
	}
	return ""
}
