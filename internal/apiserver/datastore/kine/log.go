package kine

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// kine logs to logrus's package-level logger, and with a request that failed it logs the whole
// request: the content of every object that could not be written. Its messages are therefore
// taken by a hook, which drops those, and what failed is logged here, by an interceptor, with
// the key alone.

// aboutRequests begin the messages that hold a request.
var aboutRequests = []string{"error in txn ", "error in put ", "error in compact ", "error while range on "}

const (
	// maxMessage bounds what is logged of kine's other messages, in bytes.
	maxMessage = 1 << 10
	// repeatAfter is how often one failure is logged while it lasts.
	repeatAfter = 10 * time.Second
	// maxFailures bounds the failures that are told apart.
	maxFailures = 64
)

// forward is the hook. The first server of a process decides where messages go, for logrus
// knows one logger only.
type forward struct{ logger *slog.Logger }

var forwarding sync.Once

// forwardLogs sends kine's messages from warnings on to a logger.
func forwardLogs(logger *slog.Logger) {
	forwarding.Do(func() {
		logrus.SetLevel(logrus.WarnLevel)
		logrus.SetOutput(io.Discard)
		logrus.AddHook(forward{logger})
	})
}

// Levels implements logrus.Hook.
func (forward) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (f forward) Fire(e *logrus.Entry) error {
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
	if e.Level == logrus.FatalLevel {
		// kine ends the process: it does not know whether a transaction is stored.
		f.logger.Error("the SQL datastore ends the server; next: start it again. If it ends again, the database is damaged or its disk is full: free space, or restore the database and the data directory from a backup")
	}
	return nil
}

func cut(text string) string {
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return text
}

// failures logs requests that failed: each kind of failure when it begins, and then now and
// then with a count. It is safe for concurrent use.
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
	// What a client gave up, and what it is told about compacted revisions, is no failure.
	if code := status.Code(err); err != nil && ctx.Err() == nil && code != codes.Canceled && code != codes.OutOfRange {
		f.report(info.FullMethod, keyOf(req), err)
		if code == codes.Unknown {
			// A driver's error, with the address and user of the database: it would reach clients.
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
	f.logger.Error("SQL datastore refused a request", "method", method, "key", key, "err", text, "sameSince", skipped)
}

// keyOf is the key of a request, never its value.
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
