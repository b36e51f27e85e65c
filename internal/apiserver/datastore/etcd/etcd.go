// Package etcd runs one etcd server inside this process, tuned for a control
// plane that shares its machine with the workloads. It listens on unix sockets
// only and writes its log to slog.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

const (
	// DefaultQuota is the largest database, in bytes, that etcd's authors recommend.
	DefaultQuota = 8 << 30
	// snapshotCount is how many applied entries stay in memory before the log is
	// cut. etcd's default of 10,000 keeps tens of megabytes for followers that
	// are behind; an only member has none.
	snapshotCount = 5000
	// snapshotCatchUp is how many entries stay after that, again for followers.
	snapshotCatchUp = 500
	// tickMillis times an election. A lone member has nobody to wait for, and
	// its election takes about one tick of the start-up time.
	tickMillis     = 50
	electionMillis = 500
)

// advertised is what the server would tell other members and clients that look
// for members. There are none and nothing dials it; etcd only wants something
// that looks like a host and a port.
var advertised = url.URL{Scheme: "unix", Host: "rik:1"}

// Config says where the server keeps its data and its sockets.
type Config struct {
	// Dir keeps the write-ahead log and the backend, under "etcd".
	Dir string
	// SocketDir exists, is private to this user, and has a short path.
	SocketDir string
	// Quota is how large the database may become, in bytes; 0: DefaultQuota.
	Quota  int64
	Logger *slog.Logger
}

// Server is a running etcd.
type Server struct {
	etcd     *embed.Etcd
	endpoint string
	closing  *atomic.Bool
	space    *space
	cancel   context.CancelFunc // of what keeps the space
	running  sync.WaitGroup
}

// Start returns when the server has a leader (itself) and answers.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	closing, end := &atomic.Bool{}, newGiveUp()
	ec := embedConfig(cfg, closing, end)
	if err := ec.Validate(); err != nil {
		return nil, fmt.Errorf("checking the embedded etcd's configuration: %w", err)
	}
	if err := check(ec.Dir); err != nil {
		return nil, explain(ec.Dir, err)
	}
	e, err := start(ec, end)
	if err != nil {
		return nil, explain(ec.Dir, err)
	}
	select {
	case <-e.Server.ReadyNotify():
		if !end.running() {
			return nil, explain(ec.Dir, <-end.reported)
		}
		s := &Server{etcd: e, endpoint: ec.ListenClientUrls[0].String(), closing: closing}
		if err := s.keepSpace(ctx, cfg); err != nil {
			e.Close()
			return nil, err
		}
		return s, nil
	case err := <-end.reported:
		return nil, explain(ec.Dir, err) // closing it would wait for what has ended
	case err := <-e.Err():
		e.Close()
		return nil, fmt.Errorf("waiting for the embedded etcd: %w", err)
	case <-e.Server.StopNotify():
		e.Close()
		return nil, errors.New("embedded etcd stopped while it started")
	case <-ctx.Done():
		e.Close()
		return nil, fmt.Errorf("waiting for the embedded etcd: %w", context.Cause(ctx))
	}
}

// keepSpace looks at the size of the database once, which may allow writes again that were
// refused before, and then now and then.
func (s *Server) keepSpace(ctx context.Context, cfg Config) (err error) {
	if s.space, err = newSpace(s.endpoint, cfg.quota(), cfg.Logger); err != nil {
		return err
	}
	if err := s.space.tend(ctx); err != nil {
		return errors.Join(err, s.space.client.Close())
	}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.running.Go(func() { s.space.keep(ctx) })
	return nil
}

func (c Config) quota() int64 {
	if c.Quota == 0 {
		return DefaultQuota
	}
	return c.Quota
}

// Space is ErrFull while nothing can be stored for want of room in the quota.
func (s *Server) Space() error { return s.space.full() }

// start is embed.StartEtcd, but that it fails where that would panic.
func start(ec *embed.Config, end *giveUp) (*embed.Etcd, error) {
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan result, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				started <- result{err: fmt.Errorf("%v", r)}
			}
		}()
		e, err := embed.StartEtcd(ec)
		started <- result{e, err}
	}()
	select {
	case r := <-started:
		return r.etcd, r.err
	case err := <-end.reported:
		return nil, err
	}
}

func embedConfig(cfg Config, closing *atomic.Bool, end *giveUp) *embed.Config {
	socket := func(name string) url.URL {
		return url.URL{Scheme: "unix", Path: filepath.Join(cfg.SocketDir, name)}
	}
	client := socket("client.sock")
	ec := embed.NewConfig()
	ec.Name = "rik"
	ec.Dir = filepath.Join(cfg.Dir, "etcd")
	ec.ListenClientUrls = []url.URL{client}
	ec.AdvertiseClientUrls = []url.URL{advertised}
	// A listener of its own for HTTP leaves the other to gRPC alone; on a shared
	// one, every connection goes through a multiplexer.
	ec.ListenClientHttpUrls = []url.URL{socket("http.sock")}
	// Here etcd looks at the host alone, and would listen on an abstract socket,
	// open to every local user, if it were empty.
	ec.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: socket("peer.sock").Path}}
	ec.AdvertisePeerUrls = []url.URL{advertised}
	ec.InitialCluster = ec.InitialClusterFromName(ec.Name)
	ec.TickMs, ec.ElectionMs = tickMillis, electionMillis
	ec.SnapshotCount = snapshotCount
	ec.SnapshotCatchUpEntries = snapshotCatchUp
	ec.QuotaBackendBytes = cfg.quota()
	ec.BootstrapDefragThresholdMegabytes = startShrinkMegabytes
	// The API server speaks gRPC; the JSON gateway would dial back for nothing.
	ec.EnableGRPCGateway = false
	// Without this, every request counts as a slow one.
	ec.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(newCore(cfg.Logger, closing), end.options()...))
	return ec
}

// Endpoint is the URL for an etcd client.
func (s *Server) Endpoint() string { return s.endpoint }

// Err delivers what made the server die by itself. It is closed by Close.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Close stops the server after what it has acknowledged is on disk.
func (s *Server) Close() error {
	s.cancel()
	s.running.Wait()
	err := s.space.client.Close()
	s.closing.Store(true)
	s.etcd.Close()
	return err
}
