package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/apiserver/audit"
	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/apiserver/kubecontrollers"
	"rik.dev/rik/internal/apiserver/legacyhttp"
	"rik.dev/rik/internal/apiserver/listener"
	"rik.dev/rik/internal/apiserver/outage"
	"rik.dev/rik/internal/apiserver/recovery"
	"rik.dev/rik/internal/apiserver/registry"
	"rik.dev/rik/internal/apiserver/signer"
	"rik.dev/rik/internal/pki"
)

const (
	// readyPoll is the interval of readiness checks during the start.
	readyPoll = 20 * time.Millisecond
	// readyLogged is the interval at which a server logs that it is not ready.
	readyLogged = 15 * time.Second
	// openTimeout bounds the opening of the datastore. A large etcd first replays its log.
	openTimeout = 2 * time.Minute
	// joinTimeout bounds the opening of a datastore that is copied from other servers.
	joinTimeout = 2 * time.Hour
)

// Server is an API server built by New.
type Server struct {
	cfg      Config
	logger   *slog.Logger
	creds    *credentials
	listener net.Listener
	legacy   net.Listener
	store    *datastore.Datastore
	upkeep   *datastore.Upkeep
	found    found
	chain    *chain
	url      string
	ready    chan struct{}
	// closers undo New, in reverse order.
	closers []func() error
}

// New locks the data directory, creates the files of a first start, opens the ports and the
// datastore, and builds the servers. Requests are answered only by Run. The caller must call
// Run, even with a canceled context, because Run releases all of that. ctx bounds only New.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	redirectKlog(cfg.Logger)
	s := &Server{cfg: cfg, logger: cfg.Logger, ready: make(chan struct{})}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) error {
	steps := []func(context.Context) error{s.openDataDir, s.openPorts, s.openDatastore, s.refuseUnfinished, s.findCluster, s.openCredentials, s.bindCluster, s.openLeaves, s.build}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) openDataDir(context.Context) error {
	unlock, err := lockDataDir(s.cfg.DataDir)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, unlock)
	if err := recovery.Unfinished(s.cfg.DataDir); err != nil {
		return err
	}
	return fixProfile(s.cfg.DataDir, s.cfg.Profile)
}

func (s *Server) openPorts(ctx context.Context) error {
	socket, err := listener.Listen(ctx, s.cfg.BindAddress, s.cfg.Port, "--port")
	if err != nil {
		return err
	}
	s.closers = append(s.closers, closeListener(socket))
	s.listener = listener.Sniff(s.cfg.Connections.Limit(socket))
	s.url = localURL(s.cfg.BindAddress, socket)
	if s.cfg.InsecureLegacyAddress == "" {
		return nil
	}
	legacy, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.InsecureLegacyAddress)
	if err != nil {
		return fmt.Errorf("opening the insecure legacy port: %w", err)
	}
	s.legacy = s.cfg.Connections.Limit(legacy)
	s.closers = append(s.closers, closeListener(s.legacy))
	return nil
}

// closeListener returns a function that ignores that the listener's server has closed it
// already.
func closeListener(listener net.Listener) func() error {
	return func() error {
		if err := listener.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

func (s *Server) openCredentials(context.Context) (err error) {
	mayCreate := s.found.start == clusterid.First || s.cfg.AcceptKeys
	s.creds, err = openCredentials(s.cfg, mayCreate)
	return err
}

// openLeaves writes the certificates that are signed with the keys, once the keys are known to
// be the cluster's.
func (s *Server) openLeaves(ctx context.Context) error {
	hosts, err := serverHosts(s.cfg)
	if err != nil {
		return err
	}
	if err := s.creds.openLeaves(ctx, s.cfg, hosts); err != nil {
		return err
	}
	return s.creds.writeAccess(s.cfg.ClusterName, s.url)
}

func (s *Server) openDatastore(ctx context.Context) error {
	s.cfg.Step("the datastore")
	timeout := openTimeout
	if s.cfg.Several != nil && len(s.cfg.Several.Join) > 0 {
		timeout = joinTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("datastore did not answer in time"))
	defer cancel()
	store, err := datastore.Open(ctx, s.cfg.datastore())
	if err != nil {
		return fmt.Errorf("opening the datastore: %w", err)
	}
	s.store = store
	s.closers = append(s.closers, store.Close)
	s.upkeep = datastore.NewUpkeep(store, s.logger)
	if s.cfg.Metrics != nil {
		if err := s.cfg.Metrics.Register(s.upkeep); err != nil {
			return fmt.Errorf("registering the metrics of the datastore: %w", err)
		}
		s.closers = append(s.closers, func() error { s.cfg.Metrics.Unregister(s.upkeep); return nil })
	}
	return nil
}

func (s *Server) build(ctx context.Context) error {
	s.cfg.Step("the API server")
	client, err := s.store.Endpoint().Client(zap.NewNop())
	if err != nil {
		return err
	}
	s.closers = append(s.closers, client.Close)
	monitor := outage.New(outage.Config{
		Probe:     s.store.Healthy,
		Datastore: s.cfg.datastore().Describe(), Logger: s.logger,
	})
	// The control plane keeps the context while it runs.
	built, err := buildChain(context.WithoutCancel(ctx), s.cfg, s.creds, s.listener, s.store, &revisions{client: client}, monitor)
	if err != nil {
		return err
	}
	s.chain = built
	s.closers = append(s.closers, built.log.Close)
	routes := []Route{s.backupRoute()}
	if s.cfg.Routes != nil {
		others, err := s.cfg.Routes(s)
		if err != nil {
			return fmt.Errorf("creating the routes: %w", err)
		}
		routes = append(routes, others...)
	}
	return built.routes.install(built.outermost.GenericAPIServer, routes)
}

// close undoes New and reports all errors.
func (s *Server) close() error {
	var problems []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		problems = append(problems, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(problems...)
}

// Run serves until ctx ends or a part of the server fails. It returns when all parts have
// stopped: first the controllers, then requests in flight, then the datastore, and last the
// lock of the data directory. Call it once.
func (s *Server) Run(ctx context.Context) error {
	err := s.serve(ctx)
	return errors.Join(err, s.close())
}

func (s *Server) serve(ctx context.Context) error {
	if ctx.Err() != nil {
		s.chain.outermost.GenericAPIServer.Destroy()
		return nil
	}
	prepared, err := s.chain.outermost.PrepareRun()
	if err != nil {
		return fmt.Errorf("preparing the API server: %w", err)
	}
	// The API server outlives the parts that depend on it, so it has a separate context.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	served := make(chan error, 1)
	go func() { served <- prepared.Run(serving) }()

	group, dependents := errgroup.WithContext(ctx)
	group.Go(func() error { return s.watch(dependents, served) })
	group.Go(func() error { return s.runControllers(dependents) })
	group.Go(func() error { return s.creds.server.Run(dependents) })
	group.Go(func() error { return s.chain.outage.Run(dependents) })
	group.Go(func() error { return s.upkeep.Run(dependents) })
	group.Go(func() error { return s.runAdminLeaf(dependents) })
	if s.legacy != nil {
		group.Go(func() error { return s.runLegacy(dependents) })
	}
	err = group.Wait()
	stopServing()
	if stopped := <-served; stopped != nil {
		err = errors.Join(err, fmt.Errorf("serving the API: %w", stopped))
	}
	return err
}

// watch returns an error when a part ends that should run forever, which ends all parts. It
// puts the API server's result back for the goroutine that waits for it.
func (s *Server) watch(ctx context.Context, served chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		served <- err
		return errors.New("API server stopped by itself")
	case err := <-s.store.Failed():
		return fmt.Errorf("datastore stopped by itself: %w", err)
	}
}

// runControllers waits until the API server is ready and logs that. It then runs Kubernetes'
// controllers, and in a kcp the signer of syncers' certificates.
func (s *Server) runControllers(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.LoopbackConfig())
	if err != nil {
		return fmt.Errorf("creating a client to check the readiness: %w", err)
	}
	// A full datastore does not prevent readiness here, because objects can still be deleted.
	reported := time.Now()
	err = wait.PollUntilContextCancel(ctx, readyPoll, true, func(ctx context.Context) (bool, error) {
		body, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Param("exclude", spaceCheck).Do(ctx).Raw()
		if err != nil && time.Since(reported) >= readyLogged {
			reported = time.Now()
			s.logger.Warn("API server is not ready yet", "failing", notReady(body), "err", err)
		}
		return err == nil, nil
	})
	if err != nil {
		return nil //nolint:nilerr // it was told to end before it was ready
	}
	s.logger.Info("API server is ready", "url", s.url)
	close(s.ready)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		signer.RunForUsers(ctx, client, s.creds.authority)
		return nil
	})
	if s.cfg.Profile == ProfileKCP {
		group.Go(func() error {
			signer.Run(ctx, client, s.chain.syncers.Objects, s.creds.authority)
			return nil
		})
		group.Go(func() error {
			s.chain.syncers.Clusters.Run(ctx)
			return nil
		})
	}
	group.Go(func() error { return s.runKubernetes(ctx, client) })
	return group.Wait()
}

// notReady returns the failing checks in a response of /readyz.
func notReady(answer []byte) []string {
	var failing []string
	for line := range strings.Lines(string(answer)) {
		if check, ok := strings.CutPrefix(line, "[-]"); ok {
			failing = append(failing, strings.TrimSpace(check))
		}
	}
	return failing
}

func (s *Server) runKubernetes(ctx context.Context, client kubernetes.Interface) error {
	return kubecontrollers.Run(ctx, kubecontrollers.Config{
		Client: s.LoopbackConfig(),
		// Do not use the server's own informers. /readyz waits for informers that are added to
		// those, and would fail again just after it succeeded.
		Informers:    informers.NewSharedInformerFactory(client, 0),
		RootCA:       s.creds.authority.CertificatePEM(),
		TokenKeyFile: s.creds.path(serviceAccountKeyFile),
		NotCollected: notCollected,
	})
}

// runAdminLeaf writes the administrator's files again at every renewal.
func (s *Server) runAdminLeaf(ctx context.Context) error {
	s.creds.admin.Notify(func() {
		if err := s.creds.writeAccess(s.cfg.ClusterName, s.url); err != nil {
			s.logger.Error("writing the administrator's credentials failed", "err", err)
		}
	})
	return s.creds.admin.Run(ctx)
}

func (s *Server) runLegacy(ctx context.Context) error {
	s.logger.Warn("the insecure legacy port is open: every local user is an administrator", "address", s.legacy.Addr().String())
	return legacyhttp.Serve(ctx, s.legacy, s.Handler(), func(path string) bool {
		route, ok := s.chain.routes.match(path)
		return ok && route.Legacy
	}, s.logger)
}

// Ready is closed when /readyz succeeds. It stays open if the server ends before that.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// URL is the URL at which a client on this machine reaches the server.
func (s *Server) URL() string { return s.url }

// LegacyAddress returns the address of the plain HTTP listener, or nil if there is none.
func (s *Server) LegacyAddress() net.Addr {
	if s.legacy == nil {
		return nil
	}
	return s.legacy.Addr()
}

// LoopbackConfig connects to this server as its own user with all permissions, with protobuf
// and without a client-side rate limit. The caller owns the result.
func (s *Server) LoopbackConfig() *rest.Config {
	return rest.CopyConfig(s.chain.control.Generic.LoopbackClientConfig)
}

// Handler returns the handler of the whole server, including authentication.
func (s *Server) Handler() http.Handler { return s.chain.outermost.GenericAPIServer.Handler }

// Authorizer decides which permissions a user has. A route calls it for every object.
func (s *Server) Authorizer() authorizer.Authorizer {
	return s.chain.control.Generic.Authorization.Authorizer
}

// Admission returns the chain of admission plugins and webhooks. A route runs it before it
// writes to a registry.
func (s *Server) Admission() admission.Interface { return s.chain.control.Generic.AdmissionControl }

// Stores returns the registries of rik.dev, for callers in this process. They skip
// authorization and admission. They are empty in ProfileKCP.
func (s *Server) Stores() registry.Stores {
	if s.chain.rik == nil {
		return registry.Stores{}
	}
	return s.chain.rik.Stores()
}

// Audit returns the audit log, for actions outside the API. It is nil if there is no audit log.
func (s *Server) Audit() *audit.Log { return s.chain.log }

// Authority returns the cluster's certificate authority.
func (s *Server) Authority() *pki.Authority { return s.creds.authority }

// Embedded returns the embedded etcd. It is nil with another datastore.
func (s *Server) Embedded() *etcd.Server { return s.store.Embedded() }

// DataDir returns the directory of the server's files.
func (s *Server) DataDir() string { return s.cfg.DataDir }
