// Package etcd runs one etcd server inside this process, configured for a control plane that
// shares its machine with workloads. It listens only on unix sockets and logs to slog.
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
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"rik.dev/rik/internal/apiserver/datastore/checksum"
)

const (
	// DefaultQuota is the largest database size, in bytes, that etcd's authors recommend.
	DefaultQuota = 8 << 30
	// snapshotCount is the number of applied entries that stay in memory before the log is cut.
	// etcd's default of 10,000 uses tens of megabytes for followers that are behind. A single
	// member has no followers.
	snapshotCount = 5000
	// snapshotCatchUp is the number of entries that stay after that, which are also for
	// followers.
	snapshotCatchUp = 500
	// tickMillis and electionMillis set the time of an election. A single member waits for no
	// other member, and its election adds about one tick to the start.
	tickMillis     = 50
	electionMillis = 500
)

// advertised is the URL that the server would send to other members and to clients that search
// for members. There are none, and no client dials it. etcd only requires a host and a port.
var advertised = url.URL{Scheme: "unix", Host: "rik:1"}

// Config sets the directories of the server's data and sockets.
type Config struct {
	// Dir contains the write-ahead log and the backend, under "etcd".
	Dir string
	// SocketDir must exist, must be private to this user, and must have a short path.
	SocketDir string
	// Quota is the maximum size of the database in bytes. Zero means DefaultQuota.
	Quota int64
	// Several allows other servers to join. If it is nil, the server stays alone.
	Several *Several
	Logger  *slog.Logger
	// ServeDamaged starts although stored objects do not match their checksums. It is for their
	// repair.
	ServeDamaged bool
}

// Server is a running etcd.
type Server struct {
	etcd     *embed.Etcd
	endpoint string
	closing  *atomic.Bool
	space    *space
	cancel   context.CancelFunc // of the goroutine that watches the space
	running  sync.WaitGroup

	raft atomic.Pointer[etcdserver.EtcdServer] // nil until it has started

	// given ends when a server that stops gives up its requests, because there is no leader.
	given  context.Context //nolint:containedctx // it is an event, and not passed on
	giveUp context.CancelFunc

	cluster *cluster   // nil if no server can join
	opening sync.Mutex // serializes OpenToOthers
	failed  chan error // has room for the result of watch
	ended   chan struct{}
}

// Start starts the server. It returns when the server has a leader and answers. A server that joins
// others waits until they have added it, and until it has copied their data.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{closing: &atomic.Bool{}, failed: make(chan error, 1), ended: make(chan struct{})}
	s.given, s.giveUp = context.WithCancel(context.Background())
	if cfg.Several != nil {
		var err error
		if s.cluster, err = openCluster(ctx, cfg.Dir, *cfg.Several, cfg.Logger); err != nil {
			return nil, err
		}
	}
	if err := s.start(ctx, cfg); err != nil {
		if s.cluster != nil {
			err = errors.Join(err, s.cluster.close())
		}
		return nil, err
	}
	s.running.Go(s.watch)
	return s, nil
}

func (s *Server) start(ctx context.Context, cfg Config) error {
	end := newStartFailure()
	ec := embedConfig(cfg, s.closing, end)
	if s.cluster != nil {
		if err := s.cluster.configure(ctx, ec); err != nil {
			return err
		}
		ec.GRPCAdditionalServerOptions = append(ec.GRPCAdditionalServerOptions, grpc.ChainUnaryInterceptor(s.intercept))
	}
	if err := ec.Validate(); err != nil {
		return fmt.Errorf("checking the embedded etcd's configuration: %w", err)
	}
	if _, err := check(ec.Dir); err != nil && (!cfg.ServeDamaged || !errors.Is(err, checksum.ErrObjects)) {
		return explain(ec.Dir, err)
	}
	e, err := start(ec, end)
	if err != nil {
		return explain(ec.Dir, err)
	}
	s.etcd, s.endpoint = e, ec.ListenClientUrls[0].String()
	s.raft.Store(e.Server)
	if s.cluster != nil && s.cluster.port != nil {
		if err := s.cluster.serve(s); err != nil {
			e.Close()
			return err
		}
	}
	if err := s.await(ctx, end); err != nil {
		return s.removedOr(ctx, err)
	}
	if err := s.begin(ctx, cfg); err != nil {
		e.Close()
		return err
	}
	return nil
}

// await waits until the server answers.
func (s *Server) await(ctx context.Context, end *startFailure) error {
	e := s.etcd
	select {
	case <-e.Server.ReadyNotify():
		if !end.running() {
			return explain(e.Config().Dir, <-end.reported)
		}
		return nil
	case err := <-end.reported:
		return explain(e.Config().Dir, err) // Close would wait for goroutines that have ended
	case err := <-e.Err():
		e.Close()
		return fmt.Errorf("waiting for the embedded etcd: %w", err)
	case <-e.Server.StopNotify():
		e.Close()
		return errors.New("embedded etcd stopped while it started")
	case <-ctx.Done():
		e.Close()
		return fmt.Errorf("waiting for the embedded etcd: %w", context.Cause(ctx))
	}
}

// begin completes the start of a server that answers.
func (s *Server) begin(ctx context.Context, cfg Config) error {
	if s.cluster == nil || s.cluster.port == nil {
		return s.keepSpace(ctx, cfg)
	}
	if err := s.awaitPromoted(ctx); err != nil {
		return err
	}
	if err := s.keepSpace(ctx, cfg); err != nil {
		return err
	}
	return s.announce(ctx)
}

// keepSpace checks the size of the database once, which may allow writes again that were
// refused before. It then checks at intervals.
func (s *Server) keepSpace(ctx context.Context, cfg Config) (err error) {
	if s.space, err = newSpace(s.endpoint, cfg.quota(), cfg.Logger); err != nil {
		return err
	}
	if err := s.space.maintain(ctx); err != nil {
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

// Space returns ErrFull while nothing can be stored because the quota is used up.
func (s *Server) Space() error { return s.space.full() }

// start is like embed.StartEtcd, but returns an error where that would panic.
func start(ec *embed.Config, end *startFailure) (*embed.Etcd, error) {
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

func embedConfig(cfg Config, closing *atomic.Bool, end *startFailure) *embed.Config {
	socket := func(name string) url.URL {
		return url.URL{Scheme: "unix", Path: filepath.Join(cfg.SocketDir, name)}
	}
	client := socket("client.sock")
	ec := embed.NewConfig()
	ec.Name = "rik"
	ec.Dir = filepath.Join(cfg.Dir, "etcd")
	ec.ListenClientUrls = []url.URL{client}
	ec.AdvertiseClientUrls = []url.URL{advertised}
	// With a separate listener for HTTP, the other one serves only gRPC. On a shared one, every
	// connection passes through a multiplexer.
	ec.ListenClientHttpUrls = []url.URL{socket("http.sock")}
	// etcd uses only the host here. If it were empty, etcd would listen on an abstract socket,
	// which every local user can open.
	ec.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: socket("peer.sock").Path}}
	ec.AdvertisePeerUrls = []url.URL{advertised}
	ec.InitialCluster = ec.InitialClusterFromName(ec.Name)
	ec.TickMs, ec.ElectionMs = tickMillis, electionMillis
	ec.SnapshotCount = snapshotCount
	ec.SnapshotCatchUpEntries = snapshotCatchUp
	ec.QuotaBackendBytes = cfg.quota()
	ec.BootstrapDefragThresholdMegabytes = startShrinkMegabytes
	// The API server uses gRPC. The JSON gateway would open a connection that is not used.
	ec.EnableGRPCGateway = false
	// Without this, every request is logged as a slow one.
	ec.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(newCore(cfg.Logger, closing), end.options()...))
	return ec
}

// Endpoint returns the URL for an etcd client.
func (s *Server) Endpoint() string { return s.endpoint }

// Err delivers the error if the server ends by itself.
func (s *Server) Err() <-chan error { return s.failed }

// Close stops the server after all acknowledged writes are on disk.
func (s *Server) Close() error {
	s.closing.Store(true)
	s.cancel()
	close(s.ended)
	s.running.Wait()
	err := s.space.client.Close()
	s.etcd.Close()
	if s.cluster != nil {
		err = errors.Join(err, s.cluster.close())
	}
	return err
}
