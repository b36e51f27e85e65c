// Package nodeapi is the controller's side of the connections that nodes keep
// to it: joining, certificates, what instances refer to, and the sessions (logs,
// commands, ports) that users open on instances.
//
// A node is who its certificate says. It is given only the revisions,
// ConfigMaps and Secrets that instances bound to it refer to.
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
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/internal/rpc/nodev1"
)

// DefaultValidity of a node's certificate; it renews itself long before.
const DefaultValidity = 30 * 24 * time.Hour

// Verifier says whether a join token is valid. Refusals are
// jointoken.ErrRefused.
type Verifier interface {
	// Plausible says, at little cost, whether a token may be valid.
	Plausible(ctx context.Context, text string) bool
	Verify(ctx context.Context, text string) error
	// Use verifies as well, and counts.
	Use(ctx context.Context, text string) error
}

// Authority signs the certificates of nodes.
type Authority interface {
	SignCSR(csrPEM []byte, subject pkix.Name, validity time.Duration) ([]byte, error)
	CertificatePEM() []byte
}

// Config of a [Server].
type Config struct {
	// Client reads and writes past any cache. Required.
	Client client.Client
	// Reader answers from a cache, which may be a moment behind. Required.
	Reader client.Reader
	// Informers tell of changes of instances, ConfigMaps and Secrets; the latter
	// two are watched by their metadata only. Required.
	Informers cache.Informers
	// Tokens and Authority serve joining. Required.
	Tokens    Verifier
	Authority Authority
	// Network tells of the network between instances. Nil tells nodes nothing.
	Network Network
	// Fences tells nodes whether what is fenced may run. Nil: nothing is.
	Fences Fences
	// Validity of a node's certificate. DefaultValidity when 0.
	Validity time.Duration
	// Version is told to nodes.
	Version string
	// Audit records who joined and renewed a certificate, and who was refused. Nil: nobody.
	Audit func(AuditEntry)
	// Logger reports joining, connections and refusals. Nil discards.
	Logger *slog.Logger
}

// Fences says how long ago the kcp that a namespace belongs to was last known to be in
// touch, if it ever was; found is false for a namespace that belongs to none.
type Fences interface {
	Fence(ctx context.Context, namespace string) (age time.Duration, proven, found bool, err error)
}

// Validate reports every problem.
func (c *Config) Validate() error {
	var problems []error
	for name, missing := range map[string]bool{
		"Client": c.Client == nil, "Reader": c.Reader == nil, "Informers": c.Informers == nil,
		"Tokens": c.Tokens == nil, "Authority": c.Authority == nil,
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

// Server implements the Join and Node services and opens sessions on nodes.
// Several listeners may share one.
type Server struct {
	nodev1.UnimplementedJoinServer
	nodev1.UnimplementedNodeServer

	cfg      Config
	log      *slog.Logger
	bindings *bindings
	failures *failures

	mu    sync.Mutex
	nodes map[string]*connection
	// gone are the Nodes that were deleted since this server runs.
	gone map[types.UID]bool
}

// New makes a server. Run must be called before nodes are served.
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
	return &Server{
		cfg:      cfg,
		log:      cfg.Logger,
		bindings: newBindings(),
		failures: newFailures(time.Now),
		nodes:    map[string]*connection{},
		gone:     map[types.UID]bool{},
	}, nil
}

// Register adds both services to a gRPC server. Callers of a trusted one need no
// certificate and are who they say: for a node in the same process, over a
// listener that nobody else can reach. Several registrations share one state.
func (s *Server) Register(registrar grpc.ServiceRegistrar, trusted bool) {
	nodev1.RegisterJoinServer(registrar, s)
	nodev1.RegisterNodeServer(registrar, &front{Server: s, trusted: trusted})
}

// front is the Node service of one listener.
type front struct {
	*Server
	trusted bool
}

// Run follows the cluster's changes until ctx ends. The cache must be started
// by someone else.
func (s *Server) Run(ctx context.Context) error {
	if err := s.watch(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// Connected lists the nodes that have a stream now.
func (s *Server) Connected() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.nodes {
		names = append(names, name)
	}
	return names
}

// enter makes a connection the node's only one; an older one of the same riklet ends.
// It does not when its Node has been deleted since that was looked up, or when another
// riklet is connected.
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

// refusal says why a connection may not be the node's; nil if it may.
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

// leave removes a connection unless a newer one took its place.
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
