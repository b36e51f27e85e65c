package app

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/scheduler/simulate"
)

// simulation holds the flags of rik simulate.
type simulation struct {
	nodes, zones      int
	scheduler         string
	cpu, memory, disk string
	instances         int64
	delay             time.Duration
	api               client.Client
}

func simulateCommand() *cobra.Command {
	f := newFlags()
	var s simulation
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Join many simulated nodes, which use the real protocol and run nothing",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withLog(&f, func(log *slog.Logger) error {
				if err := f.validate(s.validate); err != nil {
					return err
				}
				return s.run(c.Context(), f.control.DataDir, log)
			})
		},
	}
	f.common(c.Flags())
	c.Flags().IntVar(&s.nodes, "nodes", 10, "number of nodes")
	c.Flags().IntVar(&s.zones, "zones", 0, "number of zones over which the nodes are spread")
	c.Flags().StringVar(&s.scheduler, "scheduler", "127.0.0.1:4995", "address of the scheduler for nodes")
	c.Flags().StringVar(&s.cpu, "cpu", "32", "cores of each node")
	c.Flags().StringVar(&s.memory, "memory", "256Gi", "memory of each node")
	c.Flags().StringVar(&s.disk, "disk", "1Ti", "disk of each node")
	c.Flags().Int64Var(&s.instances, "instances", 250, "maximum number of instances on each node")
	c.Flags().DurationVar(&s.delay, "start-delay", 0, "time until an instance runs")
	return c
}

func (s *simulation) validate() []error {
	var problems []error
	if _, _, err := net.SplitHostPort(s.scheduler); err != nil {
		problems = append(problems, fmt.Errorf("--scheduler: %w", err))
	}
	if s.nodes < 1 {
		problems = append(problems, fmt.Errorf("--nodes %d: use at least 1", s.nodes))
	}
	return append(problems, notNegative("--start-delay", s.delay)...)
}

func (s *simulation) run(ctx context.Context, dataDir string, log *slog.Logger) error {
	allocatable, err := s.allocatable()
	if err != nil {
		return err
	}
	// Do this before openAuthority, which would create an authority if there is none.
	if s.api, err = administrator(dataDir); err != nil {
		return err
	}
	authority, err := openAuthority(dataDir, false)
	if err != nil {
		return err
	}
	log.Info("simulating", "nodes", s.nodes, "scheduler", s.scheduler)
	return simulate.Run(ctx, simulate.Config{
		Nodes:       s.nodes,
		Zones:       s.zones,
		Allocatable: allocatable,
		StartDelay:  s.delay,
		Logger:      log,
		Dial: func(ctx context.Context, node string) (grpc.ClientConnInterface, func(), error) {
			return s.dial(ctx, authority, node)
		},
	})
}

func (s *simulation) allocatable() (rikv1alpha1.ResourceList, error) {
	list := rikv1alpha1.ResourceList{rikv1alpha1.ResourceInstances: *resource.NewQuantity(s.instances, resource.DecimalSI)}
	for name, text := range map[rikv1alpha1.ResourceName]string{
		rikv1alpha1.ResourceCPU: s.cpu, rikv1alpha1.ResourceMemory: s.memory, rikv1alpha1.ResourceDisk: s.disk,
	} {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("%w: --%s %q: %w", errUsage, name, text, err)
		}
		list[name] = q
	}
	return list, nil
}

// administrator returns a client with the administrator's credentials from the server's data
// directory.
func administrator(dataDir string) (client.Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, apiserver.KubeconfigFile))
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's credentials (simulate runs on the server's machine, with its --data-dir): %w", err)
	}
	config.QPS = -1
	scheme := runtime.NewScheme()
	if err := rikv1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// admit creates the Node, like the join of a node, and returns its UID.
func (s *simulation) admit(ctx context.Context, name string) (types.UID, error) {
	n := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := s.api.Create(ctx, n)
	if apierrors.IsAlreadyExists(err) {
		err = s.api.Get(ctx, client.ObjectKeyFromObject(n), n)
	}
	if err != nil {
		return "", fmt.Errorf("creating node %s: %w", name, err)
	}
	return n.UID, nil
}

// dial connects as a node with that name, with a certificate for it.
func (s *simulation) dial(ctx context.Context, authority *pki.Authority, node string) (grpc.ClientConnInterface, func(), error) {
	uid, err := s.admit(ctx, node)
	if err != nil {
		return nil, nil, err
	}
	subject := pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + node, Organization: []string{rikv1alpha1.GroupNodes}, SerialNumber: string(uid)}
	certPEM, keyPEM, err := authority.IssueClient(subject, 24*time.Hour)
	if err != nil {
		return nil, nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("loading the certificate of %s: %w", node, err)
	}
	host, _, err := net.SplitHostPort(s.scheduler)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: --scheduler: %w", errUsage, err)
	}
	conn, err := grpc.NewClient(s.scheduler, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: authority.Pool(), ServerName: host, Certificates: []tls.Certificate{pair},
	})), grpc.WithNoProxy())
	if err != nil {
		return nil, nil, err
	}
	return conn, func() { _ = conn.Close() }, nil
}
