// Package nodeapi is the controller's side of its connections with nodes. It handles joining,
// certificates, the objects to which instances refer, the sessions (logs, commands, ports) that
// users open on instances, and the measurements that nodes send.
//
// A node's certificate is its identity. A node may read only the revisions, ConfigMaps and
// Secrets to which the instances bound to it refer.
//
// Reads: instances, workloadrevisions, configmaps, secrets, nodes.
// Writes: nodes, once each, at joining.
package nodeapi

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/measurement"
	"rik.dev/rik/internal/rpc/nodev1"
)

// DefaultValidity is the validity of a node's certificate. A node renews it long before it
// expires.
const DefaultValidity = 30 * 24 * time.Hour

// MinValidity is the shortest useful validity of a node's certificate. It allows a node several
// attempts to renew its certificate.
const MinValidity = time.Minute

// Verifier checks join tokens. The error of a refusal is jointoken.ErrRefused.
type Verifier interface {
	// Plausible reports, at little cost, whether a token may be valid.
	Plausible(ctx context.Context, text string) bool
	Verify(ctx context.Context, text string) error
	// Use verifies the token and counts the use.
	Use(ctx context.Context, text string) error
	// UseServer is Use for a token with which a server joins.
	UseServer(ctx context.Context, text string) error
}

// Authority signs the certificates of nodes.
type Authority interface {
	SignCSR(csrPEM []byte, subject pkix.Name, validity time.Duration) ([]byte, error)
	CertificatePEM() []byte
}

// Config configures a [Server].
type Config struct {
	// Client reads and writes without a cache. Required.
	Client client.Client
	// Reader reads from a cache, which may be slightly behind. Required.
	Reader client.Reader
	// Informers report changes of Nodes, ConfigMaps and Secrets. Only the metadata of the latter
	// two is watched. Required.
	Informers cache.Informers
	// Instances is the index of instances. New subscribes to it, so it must not have begun to
	// change. Required.
	Instances *index.Instances
	// Tokens and Authority are used for joining. Required.
	Tokens    Verifier
	Authority Authority
	// Measurements stores what nodes send about their usage. If it is nil, they are dropped.
	Measurements *measurement.Store
	// Network sends the netmap. If it is nil, nodes receive no netmap.
	Network Network
	// Servers are the servers of the cluster. If it is nil, nodes know only this one, and no other
	// server can join.
	Servers Servers
	// Fences decides whether fenced instances may run. If it is nil, no instance is fenced.
	Fences Fences
	// Validity is the validity of a node's certificate. Zero means DefaultValidity.
	Validity time.Duration
	// Version is sent to nodes.
	Version string
	// Audit records joins, renewals and refusals. If it is nil, nothing is recorded.
	Audit func(AuditEntry)
	// Logger logs joins, connections and refusals. If it is nil, nothing is logged.
	Logger *slog.Logger
}

// Fences returns the time since the last proof of contact with the kcp of a namespace. proven
// is false if there was no proof yet. found is false for a namespace that does not belong to a
// kcp.
type Fences interface {
	Fence(ctx context.Context, namespace string) (age time.Duration, proven, found bool, err error)
}

// Validate reports every problem in a configuration.
func (c *Config) Validate() error {
	var problems []error
	for name, missing := range map[string]bool{
		"Client": c.Client == nil, "Reader": c.Reader == nil, "Informers": c.Informers == nil,
		"Instances": c.Instances == nil,
		"Tokens":    c.Tokens == nil, "Authority": c.Authority == nil,
	} {
		if missing {
			problems = append(problems, fmt.Errorf("nodeapi: %s is required", name))
		}
	}
	if c.Validity < 0 {
		problems = append(problems, fmt.Errorf("nodeapi: a validity of %v is negative", c.Validity))
	}
	return errors.Join(problems...)
}

// Server implements the Join and Node services and opens sessions on nodes. Several listeners
// may share one.
type Server struct {
	nodev1.UnimplementedJoinServer
	nodev1.UnimplementedNodeServer

	cfg      Config
	log      *slog.Logger
	bindings *bindings
	failures *failures

	mu    sync.Mutex
	nodes map[string]*connection
	// gone holds the Nodes that were deleted since this server started.
	gone map[types.UID]bool
}

// New creates a server. Call Run before nodes are served.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Validity == 0 {
		cfg.Validity = DefaultValidity
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Measurements == nil {
		cfg.Measurements = measurement.NewStore() // it is written and not read
	}
	s := &Server{
		cfg:      cfg,
		log:      cfg.Logger,
		bindings: newBindings(cfg.Instances),
		failures: newFailures(time.Now),
		nodes:    map[string]*connection{},
		gone:     map[types.UID]bool{},
	}
	cfg.Instances.Subscribe(s.instanceChanged)
	return s, nil
}

// Register adds both services to a gRPC server. If trusted is set, callers need no certificate
// and their stated identity is accepted. That is for a node in the same process, over a
// listener that no other process can reach. Several registrations share one state.
func (s *Server) Register(registrar grpc.ServiceRegistrar, trusted bool) {
	nodev1.RegisterJoinServer(registrar, s)
	nodev1.RegisterNodeServer(registrar, &listenerService{Server: s, trusted: trusted})
}

const (
	// maxFromNode bounds one message of a node.
	maxFromNode = 1 << 20
	// otherStreams is the number of streams of a connection that are not sessions: Connect and
	// Renew, and the streams of sessions whose users are gone.
	otherStreams = 64
)

// silence is the time without traffic after which a connection is probed, and the timeout of that
// probe.
const silence = 10 * time.Second

// ServerOptions are the limits of a gRPC server that serves nodes, and how it finds connections that
// are lost.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.StaticStreamWindowSize(nodev1.Window), grpc.StaticConnWindowSize(nodev1.ConnectionWindow),
		grpc.MaxConcurrentStreams(nodev1.MaxSessions + otherStreams), grpc.MaxRecvMsgSize(maxFromNode),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: silence, Timeout: silence}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: silence / 4, PermitWithoutStream: true}),
	}
}

// listenerService is the Node service of one listener.
type listenerService struct {
	*Server
	trusted bool
}

// Run follows the cluster's changes until ctx ends. The caller must start the cache.
func (s *Server) Run(ctx context.Context) error {
	if err := s.watch(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// Connected returns the nodes that have a stream now.
func (s *Server) Connected() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.nodes {
		names = append(names, name)
	}
	return names
}

// enter makes a connection the only one of its node. An older connection of the same riklet is
// ended. enter returns an error if the Node was deleted since it was read, or if another riklet
// is connected.
func (s *Server) enter(c *connection) error {
	s.mu.Lock()
	if err := s.refusalLocked(c); err != nil {
		s.mu.Unlock()
		return err
	}
	old := s.nodes[c.node]
	s.nodes[c.node] = c
	s.mu.Unlock()
	if old != nil {
		old.end(errReplaced)
	}
	return nil
}

// refusal says why a connection is refused, or returns nil.
func (s *Server) refusal(c *connection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusalLocked(c)
}

func (s *Server) refusalLocked(c *connection) error {
	old := s.nodes[c.node]
	switch {
	case c.uid != "" && s.gone[c.uid]:
		return errRevoked(c.node)
	case old != nil && old.run != "" && old.run != c.run:
		return status.Error(codes.AlreadyExists, nodev1.ConnectedTwice(c.node, old.from))
	}
	return nil
}

// leave removes a connection unless a newer one has replaced it.
func (s *Server) leave(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[c.node] == c {
		delete(s.nodes, c.node)
	}
}

func (s *Server) connection(node string) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[node]
}
