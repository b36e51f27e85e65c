package multicluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/legacyregistry"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/app/logflag"
	"rik.dev/rik/internal/app/recovery"
	"rik.dev/rik/internal/heap"
	"rik.dev/rik/internal/multicluster/credential"
	"rik.dev/rik/internal/multicluster/negotiation/plan/storage"
	"rik.dev/rik/internal/pki"
)

const (
	// kcpPort is the port of the prototype. A kcp and a rik cluster can run on one machine.
	kcpPort = 6443
	// kcpName is the name of the kcp in the administrator's kubeconfig.
	kcpName = "kcp"
)

// kcp contains the flags of the command.
type kcp struct {
	server         apiserver.Config
	etcdServers    string
	quota          datastore.Quota
	runControllers bool
	controllers    controllers
	logging        logflag.Flags
	restore        recovery.Flags
}

func kcpCommand() *cobra.Command {
	var k kcp
	c := &cobra.Command{
		Use:   "kcp",
		Short: "Run an API server in front of many clusters",
		Long: "kcp runs an API server without pods and nodes, in which clusters are registered, and its\n" +
			"controllers. They import the types of the clusters, split objects without a cluster over\n" +
			"the clusters, and sync objects to them. admin.kubeconfig in the root directory is the\n" +
			"kubeconfig of its administrator.",
		Example: "  kcp --push-mode\n" +
			"  kcp --run-controllers=false --datastore-endpoint https://etcd.example:2379 --datastore-cafile ca.crt",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return k.run(c.Context(), c.ErrOrStderr()) },
	}
	k.addFlags(c.Flags())
	k.controllers.addFlags(c.Flags())
	k.logging.Add(c.Flags())
	return c
}

// noArgs rejects arguments and names the first one.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

func (k *kcp) addFlags(s *pflag.FlagSet) {
	s.StringVar(&k.server.DataDir, "root-directory", ".kcp", "directory of the kcp's data, certificates and admin.kubeconfig")
	s.StringVar(&k.server.BindAddress, "bind-address", "", "IP address to listen on; all addresses by default")
	s.IntVar(&k.server.Port, "port", kcpPort, "port of the API (TLS)")
	s.StringVar(&k.server.AdvertiseAddress, "advertise-address", "", "IP address at which syncers in other clusters reach this kcp; detected by default")
	s.StringSliceVar(&k.server.ExtraSANs, "tls-san", nil, "additional host names and IP addresses in the server's certificate")
	s.StringVar(&k.server.DatastoreEndpoint, "datastore-endpoint", "", "external datastore: https://... of an etcd cluster, sqlite://, postgres:// or mysql://; embedded etcd by default")
	s.StringVar(&k.etcdServers, "etcd-servers", "", "the same as --datastore-endpoint, with the name of the prototype")
	s.Var(&k.quota, "datastore-quota", "maximum size of the embedded etcd's database, such as 10Gi (default 8Gi)")
	s.StringVar(&k.server.DatastoreCAFile, "datastore-cafile", "", "file with the certificate authority of the external datastore")
	s.StringVar(&k.server.DatastoreCertFile, "datastore-certfile", "", "file with the client certificate for the external datastore")
	s.StringVar(&k.server.DatastoreKeyFile, "datastore-keyfile", "", "file with the client key for the external datastore")
	s.BoolVar(&k.server.NewCluster, "new-cluster", false, "begin a new kcp, even if the data directory or the datastore belongs to another one; use it for one start only")
	s.BoolVar(&k.server.AcceptKeys, "accept-keys", false, "accept the keys in the data directory, even if the kcp was used with other keys; use it for one start only")
	k.restore.Add(s)
	s.BoolVar(&k.runControllers, "run-controllers", true, "run the cluster controller, negotiation and the splitter in this process; otherwise run cluster-controller as a program of its own")
}

// complete sets the server's configuration from the flags.
func (k *kcp) complete(log *slog.Logger) error {
	if k.etcdServers != "" {
		if k.server.DatastoreEndpoint != "" {
			return errors.New("--etcd-servers is another name of --datastore-endpoint: set only one of them")
		}
		k.server.DatastoreEndpoint = k.etcdServers
	}
	k.server.Profile, k.server.ClusterName = apiserver.ProfileKCP, kcpName
	k.server.Logger = log.With("component", "apiserver")
	k.server.Loss = storage.Loss
	k.server.DatastoreQuota = int64(k.quota)
	k.server.Metrics = legacyregistry.Registerer()
	return errors.Join(k.server.Validate(), k.restore.Validate(), k.controllers.validate())
}

func (k *kcp) run(ctx context.Context, out io.Writer) error {
	log, err := k.logging.Logger(out)
	if err != nil {
		return err
	}
	if err := k.complete(log); err != nil {
		return err
	}
	if err := k.restore.Run(ctx, k.server); err != nil {
		return err
	}
	server, err := apiserver.New(ctx, k.server)
	if err != nil {
		return err
	}
	return k.serve(ctx, server, log)
}

// serve runs the API server, and the controllers when it is ready. The API server stops last,
// because the controllers need it for their last writes.
func (k *kcp) serve(ctx context.Context, server *apiserver.Server, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	dependents, stopDependents := context.WithCancel(ctx)
	defer stopDependents()
	group.Go(func() error {
		defer stopDependents()
		return server.Run(serving)
	})
	group.Go(func() error {
		defer stopServing()
		select {
		case <-dependents.Done():
			return nil
		case <-server.Ready():
		}
		log.Info("ready", "url", server.URL(), "directory", server.DataDir(), "controllers", k.runControllers)
		group.Go(func() error {
			heap.Tune(dependents, heap.KCP())
			return nil
		})
		if !k.runControllers {
			<-dependents.Done()
			return nil
		}
		loopback := server.LoopbackConfig()
		// Types that CRDs serve do not support protobuf.
		loopback.ContentType, loopback.AcceptContentTypes = runtime.ContentTypeJSON, ""
		return k.controllers.run(dependents, loopback, issuer(server), log)
	})
	return group.Wait()
}

// issuer signs certificates for syncers that run elsewhere.
func issuer(server *apiserver.Server) credentials {
	return func(_ context.Context, cluster string, uid types.UID) ([]byte, error) {
		return server.KubeconfigFor(pki.User(workloadv1alpha1.SyncerUserPrefix+cluster, string(uid)), credential.Validity)
	}
}
