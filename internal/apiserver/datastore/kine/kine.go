// Package kine serves the etcd API from a SQL database: SQLite in a file, PostgreSQL or MySQL.
// It is a thin layer around the k3s-io/kine library and listens only on a unix socket.
package kine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/generic"
	_ "github.com/k3s-io/kine/pkg/drivers/mysql" // registers mysql://
	_ "github.com/k3s-io/kine/pkg/drivers/pgsql" // registers postgres://
	"github.com/k3s-io/kine/pkg/server"
	"github.com/k3s-io/kine/pkg/tls"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"rik.dev/rik/internal/pause"
)

// The intervals and sizes of kine's own command. The library has no defaults for them.
const (
	notifyInterval  = 5 * time.Second
	emulatedVersion = "3.6.16"
	// compactTimeout bounds one transaction of a compaction. kine's own 5 s are shorter than the
	// wait for a lock of SQLite: under load, no compaction ever succeeded.
	compactTimeout   = time.Minute
	compactBatchSize = 1000
	pollBatchSize    = 500
	// requestOverhead is the size that gRPC adds to the largest request of etcd, in bytes.
	requestOverhead = 512 << 10
	// stopTimeout is how long requests in flight may take at the end.
	stopTimeout = 2 * time.Second
)

// KeptRevisions is the number of the latest revisions that no compaction removes.
const KeptRevisions = 1000

// Config selects the database.
type Config struct {
	// Source is a sqlite://, postgres:// or mysql:// data source. sqlite:// without a path means
	// a file in Dir.
	Source string
	// Dir is the directory of the SQLite file if Source names none.
	Dir string
	// SocketDir must exist, must be private to this user, and must have a short path.
	SocketDir string
	// CAFile, CertFile and KeyFile are for the connection to the database.
	CAFile, CertFile, KeyFile string
	// Logger logs failures. Required.
	Logger *slog.Logger
	// ServeDamaged opens a SQLite file although stored objects do not match their checksums. It is
	// for their repair.
	ServeDamaged bool

	attempt time.Duration // see connect; zero means openAttempt
}

// Server is a running kine.
type Server struct {
	socket  string
	cancel  context.CancelFunc
	running *sync.WaitGroup
	file    *sqliteFile // nil unless the database is SQLite
}

// Start starts a server. It returns when the database has its schema and the socket listens.
// ctx is not used after that.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("starting kine: %w", err)
	}
	forwardLogs(cfg.Logger)
	// kine's own context ends with Close and not with the caller's, because its clients must end
	// first.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Server{cancel: cancel, socket: filepath.Join(cfg.SocketDir, "client.sock"), running: &sync.WaitGroup{}}
	err := s.open(ctx, run, cfg)
	if err != nil {
		cancel()
		s.running.Wait()
		if s.file != nil {
			err = errors.Join(err, s.file.db.Close())
		}
		return nil, fmt.Errorf("opening the SQL datastore: %w", err)
	}
	return s, nil
}

// open prepares the database and serves it until run ends. ctx bounds the preparation.
func (s *Server) open(ctx, run context.Context, cfg Config) (err error) {
	source, pool := cfg.Source, generic.ConnectionPoolConfig{MaxIdle: serverConnections, MaxOpen: serverConnections}
	if strings.HasPrefix(source, "sqlite://") {
		if s.file, err = openSQLite(ctx, cfg); err != nil {
			return err
		}
		source, pool = s.file.source(), generic.ConnectionPoolConfig{MaxIdle: sqliteConnections, MaxOpen: sqliteConnections}
		s.running.Go(func() { s.file.keep(run) })
	}
	return s.serve(ctx, run, cfg, source, pool)
}

// serverConnections bounds the connections to a database server, and is how many stay open. With
// kine's default of two idle ones, most concurrent writes would open a connection of their own,
// which takes PostgreSQL longer than the write. PostgreSQL accepts 100 in its default settings.
const serverConnections = 16

// openAttempt is how long kine tries to open a database before connect starts again.
const openAttempt = 15 * time.Second

// connectInterval is the pause before that, the same as kine's own.
const connectInterval = time.Second

// connect opens the database and retries until ctx ends. kine creates a missing database only
// before its first attempt, which a server that is just starting refuses. After 300 attempts it
// uses a connection that it does not have. connect therefore starts kine again before that.
func (s *Server) connect(ctx context.Context, most time.Duration, cfg drivers.Config) (server.Backend, error) {
	for {
		attempt, end := context.WithCancel(ctx)
		timeout := time.AfterFunc(most, end)
		// The first action of kine with an open database is to register its metrics. Its next
		// actions, such as changing a large table, may take long, so the attempt no longer has a
		// timeout.
		cfg.MetricsRegisterer = whenOpen(func() { timeout.Stop() })
		_, backend, err := drivers.New(attempt, s.running, &cfg)
		if err == nil && attempt.Err() == nil {
			context.AfterFunc(ctx, end)
			return backend, nil
		}
		gaveUp := attempt.Err() != nil
		timeout.Stop()
		end()
		_, unreached := errors.AsType[*net.OpError](err)
		if ctx.Err() != nil || !gaveUp && !unreached {
			return nil, err
		}
		if unreached { // kine does not wait for a MySQL server
			logrus.Errorf("The database cannot be reached: %v", err)
		}
		if !pause.For(ctx, connectInterval) {
			return nil, context.Cause(ctx)
		}
	}
}

// whenOpen is a registry of metrics that is called when a metric is registered, and stores
// none.
type whenOpen func()

// Register implements prometheus.Registerer.
func (o whenOpen) Register(prometheus.Collector) error { o(); return nil }

// MustRegister implements prometheus.Registerer.
func (o whenOpen) MustRegister(...prometheus.Collector) { o() }

// Unregister implements prometheus.Registerer.
func (o whenOpen) Unregister(prometheus.Collector) bool { return true }

// serve does the same as kine's package endpoint. That package cannot be used, because it adds
// a NATS server, an S3 client and a key-value store to every program that imports it.
func (s *Server) serve(starting, ctx context.Context, cfg Config, source string, pool generic.ConnectionPoolConfig) (err error) {
	// The database closes after the last request. kine stops trying to open it when its caller
	// ends.
	open, closeDatabase := context.WithCancel(context.WithoutCancel(ctx))
	stopTrying := context.AfterFunc(starting, closeDatabase)
	defer func() {
		if !stopTrying() && err == nil {
			err = context.Cause(starting)
		}
		if err != nil {
			closeDatabase()
		}
	}()
	backend, err := s.connect(open, cmp.Or(cfg.attempt, openAttempt), drivers.Config{
		Endpoint:             source,
		ConnectionPoolConfig: pool,
		BackendTLSConfig:     tls.Config{CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile},
		// kine does not compact by itself: the API server compacts, as with etcd.
		CompactTimeout:   compactTimeout,
		CompactMinRetain: KeptRevisions,
		CompactBatchSize: compactBatchSize,
		PollBatchSize:    pollBatchSize,
	})
	if err != nil {
		return err
	}
	if backend == nil {
		return errors.New("programmer error: the source is not a SQL database")
	}
	repaired := newBackend(backend, s.file == nil)
	if strings.HasPrefix(cfg.Source, "mysql://") {
		if err := distinguishCase(open, cfg); err != nil {
			return err
		}
		if err := warnOfSettings(open, cfg); err != nil {
			return err
		}
		if repaired.size, err = mysqlSize(open, cfg); err != nil {
			return err
		}
	}
	if err := backend.Start(open); err != nil {
		return err
	}
	if err := os.Remove(s.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "unix", s.socket)
	if err != nil {
		return err
	}
	served := grpc.NewServer(
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: embed.DefaultGRPCKeepAliveMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: embed.DefaultGRPCKeepAliveInterval, Timeout: embed.DefaultGRPCKeepAliveTimeout}),
		grpc.MaxConcurrentStreams(embed.DefaultMaxConcurrentStreams),
		grpc.MaxRecvMsgSize(embed.DefaultMaxRequestBytes+requestOverhead),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.ChainUnaryInterceptor(limitSize, newFailures(cfg.Logger).intercept),
	)
	server.New(repaired, "unix", notifyInterval, emulatedVersion).Register(served)
	s.running.Go(func() {
		if err := served.Serve(listener); err != nil {
			logrus.Errorf("serving the SQL datastore: %v", err)
		}
	})
	s.running.Go(func() {
		<-ctx.Done()
		hard := time.AfterFunc(stopTimeout, served.Stop)
		defer hard.Stop()
		served.GracefulStop()
		closeDatabase()
	})
	return nil
}

// limitSize refuses requests that etcd refuses, as an interceptor. Otherwise an object could be
// too large for the datastore that a cluster moves to.
func limitSize(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if r, ok := req.(interface{ Size() int }); ok && r.Size() > embed.DefaultMaxRequestBytes {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	return handler(ctx, req)
}

// Endpoint returns the URL for an etcd client.
func (s *Server) Endpoint() string { return "unix://" + s.socket }

// Files returns the files of a SQLite database: the main file and its log, which may not exist
// yet. It returns none for another database.
func (s *Server) Files() []string {
	if s.file == nil {
		return nil
	}
	return []string{s.file.path, s.file.path + "-wal"}
}

// Close stops serving and waits until the database is closed. A SQLite database is then
// completely in its file.
func (s *Server) Close() error {
	s.cancel()
	s.running.Wait()
	if s.file != nil {
		return s.file.close()
	}
	return nil
}
