// Package kubecontrollers runs, inside the API server's process, those of
// Kubernetes' own controllers without which a control plane is only a database:
// nothing else removes a namespace's finalizer, follows owner references, makes
// the default service account, fills the Secrets of service accounts' tokens, publishes
// the cluster's authority, or fills aggregated cluster roles.
//
// Reads: every resource's metadata, namespaces, service accounts, their token Secrets,
// cluster roles. Writes: deletions and finalizers of everything, service accounts named
// default, the token Secrets, the configmap kube-root-ca.crt, the rules of aggregated cluster roles.
package kubecontrollers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	tokens "k8s.io/kubernetes/pkg/serviceaccount"
)

const (
	// workers of each controller. Two cores have little use for more, and every
	// one of them is mostly waiting for the API server anyway.
	workers = 4
	// gcPeriod is how often the garbage collector looks for new types, as in
	// kube-controller-manager. A CRD's objects are collected from then on.
	gcPeriod = 30 * time.Second
	// resync makes a namespace whose deletion got stuck be tried again.
	resync = 5 * time.Minute
)

// Config is what the controllers work with.
type Config struct {
	// Client is the connection of a user who may do everything.
	Client *rest.Config
	// Informers is a factory over the same server; the controllers add to it and
	// start what they added. It must not be one that the server's readiness
	// waits for.
	Informers informers.SharedInformerFactory
	// RootCA is the PEM certificate that pods and users verify the server with.
	RootCA []byte
	// TokenKeyFile holds the private key that signs the tokens of service accounts.
	TokenKeyFile string
	// NotCollected are resources whose owner references somebody else follows.
	NotCollected []schema.GroupResource
}

// controllers are the ones that Run runs.
type controllers struct {
	loops []func(context.Context)
}

// Run runs the controllers until ctx ends and each of them has returned.
// The API server must be answering when it is called.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Client == nil || cfg.Informers == nil || len(cfg.RootCA) == 0 || cfg.TokenKeyFile == "" {
		return errors.New("programmer error: kubecontrollers need a client, informers, the authority's certificate and the key of tokens")
	}
	ctx = klog.NewContext(ctx, klog.Background().WithName("kubecontrollers"))
	cs := &controllers{}
	client, err := kubernetes.NewForConfig(cfg.Client)
	if err != nil {
		return fmt.Errorf("making a client for Kubernetes' controllers: %w", err)
	}
	metadataClient, err := metadata.NewForConfig(cfg.Client)
	if err != nil {
		return fmt.Errorf("making a metadata client for Kubernetes' controllers: %w", err)
	}
	cs.addNamespace(ctx, cfg, client, metadataClient)
	cs.addRoles(cfg, client)
	if err := errors.Join(
		cs.addServiceAccounts(ctx, cfg, client),
		cs.addTokens(ctx, cfg, client),
		cs.addPublisher(cfg, client),
		cs.addCollector(ctx, cfg, client, metadataClient),
	); err != nil {
		return err
	}
	cfg.Informers.Start(ctx.Done())
	var group errgroup.Group
	for _, loop := range cs.loops {
		group.Go(func() error {
			loop(ctx)
			return nil
		})
	}
	return group.Wait()
}

func (cs *controllers) add(loop func(context.Context)) { cs.loops = append(cs.loops, loop) }

func (cs *controllers) addNamespace(ctx context.Context, cfg Config, client kubernetes.Interface, metadataClient metadata.Interface) {
	c := namespace.NewNamespaceController(ctx, client, metadataClient,
		client.Discovery().ServerPreferredNamespacedResources,
		cfg.Informers.Core().V1().Namespaces(), resync, corev1.FinalizerKubernetes)
	cs.add(func(ctx context.Context) { c.Run(ctx, workers) })
}

func (cs *controllers) addRoles(cfg Config, client kubernetes.Interface) {
	c := clusterroleaggregation.NewClusterRoleAggregation(cfg.Informers.Rbac().V1().ClusterRoles(), client.RbacV1())
	// One worker: all of its items touch the same few roles.
	cs.add(func(ctx context.Context) { c.Run(ctx, 1) })
}

func (cs *controllers) addServiceAccounts(ctx context.Context, cfg Config, client kubernetes.Interface) error {
	core := cfg.Informers.Core().V1()
	c, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx), core.ServiceAccounts(), core.Namespaces(), client,
		serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return fmt.Errorf("making the service account controller: %w", err)
	}
	cs.add(func(ctx context.Context) { c.Run(ctx, 1) })
	return nil
}

// addTokens fills the Secrets of type kubernetes.io/service-account-token.
func (cs *controllers) addTokens(ctx context.Context, cfg Config, client kubernetes.Interface) error {
	key, err := keyutil.PrivateKeyFromFile(cfg.TokenKeyFile)
	if err != nil {
		return fmt.Errorf("reading the key of service accounts' tokens: %w", err)
	}
	generator, err := tokens.JWTTokenGenerator(tokens.LegacyIssuer, key)
	if err != nil {
		return fmt.Errorf("preparing the tokens of service accounts: %w", err)
	}
	// Of its own, so that other Secrets are not kept in memory.
	secrets := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
	}))
	c, err := serviceaccount.NewTokensController(klog.FromContext(ctx), cfg.Informers.Core().V1().ServiceAccounts(), secrets.Core().V1().Secrets(), client,
		serviceaccount.TokensControllerOptions{TokenGenerator: generator, RootCA: cfg.RootCA})
	if err != nil {
		return fmt.Errorf("making the controller of service accounts' tokens: %w", err)
	}
	cs.add(func(ctx context.Context) {
		secrets.Start(ctx.Done())
		defer secrets.Shutdown()
		c.Run(ctx, 1)
	})
	return nil
}

func (cs *controllers) addPublisher(cfg Config, client kubernetes.Interface) error {
	core := cfg.Informers.Core().V1()
	c, err := rootcacertpublisher.NewPublisher(core.ConfigMaps(), core.Namespaces(), client, cfg.RootCA)
	if err != nil {
		return fmt.Errorf("making the publisher of the authority's certificate: %w", err)
	}
	cs.add(func(ctx context.Context) { c.Run(ctx, 1) })
	return nil
}

func (cs *controllers) addCollector(ctx context.Context, cfg Config, client kubernetes.Interface, metadataClient metadata.Interface) error {
	ignored := map[schema.GroupResource]struct{}{}
	for resource := range garbagecollector.DefaultIgnoredResources() {
		ignored[resource] = struct{}{}
	}
	for _, resource := range cfg.NotCollected {
		ignored[resource] = struct{}{}
	}
	// The collector asks for metadata informers of every type; the typed ones of
	// cfg.Informers serve it where they exist.
	metadataInformers := metadatainformer.NewSharedInformerFactory(metadataClient, 0)
	factory := informerfactory.NewInformerFactory(cfg.Informers, metadataInformers)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	// Closed at once: the collector starts by itself whatever it adds.
	started := make(chan struct{})
	close(started)
	c, err := garbagecollector.NewGarbageCollector(ctx, client, metadataClient, mapper, ignored, factory, started)
	if err != nil {
		return fmt.Errorf("making the garbage collector: %w", err)
	}
	cs.add(func(ctx context.Context) { c.Run(ctx, workers, gcPeriod) })
	cs.add(func(ctx context.Context) { c.Sync(ctx, client.Discovery(), gcPeriod) })
	return nil
}
