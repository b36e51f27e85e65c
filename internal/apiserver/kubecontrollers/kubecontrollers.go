// Package kubecontrollers runs some of Kubernetes' own controllers inside the API server's
// process. Without them a control plane is only a database. They remove the finalizers of
// namespaces, delete dependents of deleted owners, and create the default service accounts. They
// also fill the Secrets of service account tokens, the configmap with the cluster's authority, and
// aggregated cluster roles.
//
// Reads: every resource's metadata, namespaces, service accounts, their token Secrets, cluster
// roles. Writes: deletions and finalizers of all objects, service accounts named default, the
// token Secrets, the configmap kube-root-ca.crt, the rules of aggregated cluster roles.
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
	// workers is the number of workers of each controller. Two cores have little use for more,
	// and the workers mostly wait for the API server.
	workers = 4
	// gcPeriod is the interval at which the garbage collector searches for new types, the same as
	// in kube-controller-manager. The objects of a new CRD are collected from then on.
	gcPeriod = 30 * time.Second
	// resync is the interval at which a namespace with a stuck deletion is tried again.
	resync = 5 * time.Minute
)

// Config configures the controllers.
type Config struct {
	// Client is the connection of a user with all permissions.
	Client *rest.Config
	// Informers is a factory for the same server. The controllers add informers to it and start
	// them. The server's readiness must not wait for it.
	Informers informers.SharedInformerFactory
	// RootCA is the PEM certificate with which pods and users verify the server.
	RootCA []byte
	// TokenKeyFile contains the private key that signs the tokens of service accounts.
	TokenKeyFile string
	// NotCollected are resources whose owner references another controller follows.
	NotCollected []schema.GroupResource
}

// controllers are the controllers that Run runs.
type controllers struct {
	loops []func(context.Context)
}

// Run runs the controllers until ctx ends and each of them has returned. The API server must be
// ready when it is called.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Client == nil || cfg.Informers == nil || len(cfg.RootCA) == 0 || cfg.TokenKeyFile == "" {
		return errors.New("programmer error: kubecontrollers need a client, informers, the authority's certificate and the key of tokens")
	}
	ctx = klog.NewContext(ctx, klog.Background().WithName("kubecontrollers"))
	cs := &controllers{}
	client, err := kubernetes.NewForConfig(cfg.Client)
	if err != nil {
		return fmt.Errorf("creating a client for Kubernetes' controllers: %w", err)
	}
	metadataClient, err := metadata.NewForConfig(cfg.Client)
	if err != nil {
		return fmt.Errorf("creating a metadata client for Kubernetes' controllers: %w", err)
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
	// One worker is sufficient, because all items change the same few roles.
	cs.add(func(ctx context.Context) { c.Run(ctx, 1) })
}

func (cs *controllers) addServiceAccounts(ctx context.Context, cfg Config, client kubernetes.Interface) error {
	core := cfg.Informers.Core().V1()
	c, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx), core.ServiceAccounts(), core.Namespaces(), client,
		serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return fmt.Errorf("creating the service account controller: %w", err)
	}
	cs.add(func(ctx context.Context) { c.Run(ctx, 1) })
	return nil
}

// addTokens adds the controller that fills the Secrets of type
// kubernetes.io/service-account-token.
func (cs *controllers) addTokens(ctx context.Context, cfg Config, client kubernetes.Interface) error {
	key, err := keyutil.PrivateKeyFromFile(cfg.TokenKeyFile)
	if err != nil {
		return fmt.Errorf("reading the key of service accounts' tokens: %w", err)
	}
	generator, err := tokens.JWTTokenGenerator(tokens.LegacyIssuer, key)
	if err != nil {
		return fmt.Errorf("preparing the tokens of service accounts: %w", err)
	}
	// Use a separate factory, so that other Secrets are not kept in memory.
	secrets := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
	}))
	c, err := serviceaccount.NewTokensController(klog.FromContext(ctx), cfg.Informers.Core().V1().ServiceAccounts(), secrets.Core().V1().Secrets(), client,
		serviceaccount.TokensControllerOptions{TokenGenerator: generator, RootCA: cfg.RootCA})
	if err != nil {
		return fmt.Errorf("creating the controller of service accounts' tokens: %w", err)
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
		return fmt.Errorf("creating the publisher of the authority's certificate: %w", err)
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
	// The collector requests metadata informers of every type. The typed informers in
	// cfg.Informers serve it if they exist.
	metadataInformers := metadatainformer.NewSharedInformerFactory(metadataClient, 0)
	factory := informerfactory.NewInformerFactory(cfg.Informers, metadataInformers)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	// Closed at once, because the collector itself starts the informers that it adds.
	started := make(chan struct{})
	close(started)
	c, err := garbagecollector.NewGarbageCollector(ctx, client, metadataClient, mapper, ignored, factory, started)
	if err != nil {
		return fmt.Errorf("creating the garbage collector: %w", err)
	}
	cs.add(func(ctx context.Context) { c.Run(ctx, workers, gcPeriod) })
	cs.add(func(ctx context.Context) { c.Sync(ctx, client.Discovery(), gcPeriod) })
	return nil
}
