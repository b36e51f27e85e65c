package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/audit"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/datastore/checksum"
	"rik.dev/rik/internal/apiserver/filters/body"
	"rik.dev/rik/internal/apiserver/filters/protobuf"
	"rik.dev/rik/internal/apiserver/filters/quantities"
	"rik.dev/rik/internal/apiserver/filters/strategic"
	"rik.dev/rik/internal/apiserver/filters/strict"
	"rik.dev/rik/internal/apiserver/openapidoc"
	"rik.dev/rik/internal/apiserver/outage"
	"rik.dev/rik/internal/apiserver/registry"
	"rik.dev/rik/internal/apiserver/registry/core"
	"rik.dev/rik/internal/apiserver/registry/crd"
	"rik.dev/rik/internal/apiserver/registry/deployment"
	"rik.dev/rik/internal/apiserver/syncerauth"
	"rik.dev/rik/internal/backup"
	"rik.dev/rik/internal/controllerterm"
)

// name is the server's name in metrics and health checks.
const name = "rik"

// spaceCheck is the check in /readyz that fails while nothing can be stored.
const spaceCheck = "datastore-space"

// serverCount is the number of API servers that share the datastore. With more than one, a new
// CRD is served only after five seconds, so that all of them have it.
const serverCount = 1

// unwantedHooks write to the datastore every few seconds, or serve parts that rik does not
// have. They are the leases by which several servers recognize each other, the tracking of
// service account tokens from before 2022, and Kubernetes' own set of roles.
var unwantedHooks = []string{
	"start-kube-apiserver-identity-lease-controller",
	"start-kube-apiserver-identity-lease-garbage-collector",
	"start-legacy-token-tracking-controller",
	rbacrest.PostStartHookName,
}

// chain holds the three servers that form the API server. Each passes on requests that it does
// not serve. The outermost is the aggregator, then come the native types, then the types
// defined by CRDs.
type chain struct {
	opts       options.CompletedOptions
	control    *controlplaneapiserver.Config
	extensions *apiextensionsapiserver.Config
	aggregator *aggregatorapiserver.Config

	outermost *aggregatorapiserver.APIAggregator
	crds      crdinformers.CustomResourceDefinitionInformer
	rik       *registry.Provider    // nil in the profile that does not serve rik.dev
	syncers   syncerauth.Authorizer // in the profile kcp
	gate      *crd.Gate             // nil unless stored objects are guarded
	revisions *revisions
	log       *audit.Log // nil without an audit log
	routes    *routeTable
	outage    *outage.Monitor
	space     func() error // of the datastore
}

// buildChain builds the servers. Nothing is served before the caller runs the outermost one.
func buildChain(ctx context.Context, cfg Config, creds *credentials, listener net.Listener, store *datastore.Datastore, revisions *revisions, monitor *outage.Monitor) (*chain, error) {
	opts, err := controlPlaneOptions(ctx, cfg, creds, listener, store.Endpoint())
	if err != nil {
		return nil, err
	}
	c := &chain{opts: opts, routes: &routeTable{}, revisions: revisions, outage: monitor, space: store.Space}
	if err := c.configure(cfg); err != nil {
		return nil, err
	}
	if err := c.create(cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// configure derives the configurations of the three servers.
func (c *chain) configure(cfg Config) error {
	generic, informers, storage, err := controlplaneapiserver.BuildGenericConfig(c.opts,
		[]*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme},
		resourceConfig(cfg.Profile), definitions)
	if err != nil {
		return fmt.Errorf("configuring the control plane: %w", err)
	}
	// Deprecation warnings to the loopback client have no reader.
	generic.LoopbackClientConfig.WarningHandler = rest.NoWarnings{}
	generic.EffectiveVersion = ours{generic.EffectiveVersion}
	generic.LongRunningFunc = orStreams(generic.LongRunningFunc)
	generic.DisabledPostStartHooks.Insert(unwantedHooks...)
	generic.BuildHandlerChainFunc = func(inner http.Handler, config *genericapiserver.Config) http.Handler {
		behind := refuseAhead(ofTerm(c.behindAuthorization(inner, cfg.Profile)), c.revisions)
		served := genericapiserver.DefaultBuildHandlerChain(quantities.Wrap(c.outage.Wrap(behind, legacyscheme.Codecs), legacyscheme.Codecs), config)
		return withURILimit(served)
	}
	generic.RESTOptionsGetter = sized{checksum.Options{RESTOptionsGetter: generic.RESTOptionsGetter}}
	generic.OpenAPIConfig.Info.Title, generic.OpenAPIV3Config.Info.Title = "rik", "rik"
	generic.OpenAPIConfig.GetDefinitionName = namesOurs(generic.OpenAPIConfig.GetDefinitionName)
	generic.OpenAPIV3Config.GetDefinitionName = namesOurs(generic.OpenAPIV3Config.GetDefinitionName)
	if err := c.secure(generic, cfg); err != nil {
		return err
	}
	if cfg.AuditLog != AuditOff {
		c.log = audit.Open(cfg.AuditLog)
		generic.AuditPolicyRuleEvaluator, generic.AuditBackend = audit.Policy(), c.log
	}
	generic.AddReadyzChecks(healthz.NamedCheck(spaceCheck, func(*http.Request) error { return c.space() }))

	resolver := webhook.NewDefaultServiceResolver()
	var initializers []admission.PluginInitializer
	c.control, initializers, err = controlplaneapiserver.CreateConfig(c.opts, generic, informers, storage, resolver, nil)
	if err != nil {
		return fmt.Errorf("configuring the native types: %w", err)
	}
	auth := webhook.NewDefaultAuthenticationInfoResolverWrapper(c.control.ProxyTransport, generic.EgressSelector, generic.LoopbackClientConfig, generic.TracerProvider)
	c.extensions, err = controlplaneapiserver.CreateAPIExtensionsConfig(*generic, informers, initializers, c.opts, serverCount, resolver, auth)
	if err != nil {
		return fmt.Errorf("configuring the types of CRDs: %w", err)
	}
	c.extensions.ExtraConfig.CRDRESTOptionsGetter = sized{checksum.Options{RESTOptionsGetter: c.extensions.ExtraConfig.CRDRESTOptionsGetter}}
	c.aggregator, err = controlplaneapiserver.CreateAggregatorConfig(*generic, c.opts, informers, resolver, c.control.ProxyTransport, nil, initializers)
	if err != nil {
		return fmt.Errorf("configuring the aggregator: %w", err)
	}
	// There are no Services here whose endpoints this controller could probe.
	c.aggregator.ExtraConfig.DisableRemoteAvailableConditionController = true
	return nil
}

// orStreams adds the requests for images of nodes, and for a backup, to those that run long.
func orStreams(long genericapirequest.LongRunningRequestCheck) genericapirequest.LongRunningRequestCheck {
	return func(r *http.Request, info *genericapirequest.RequestInfo) bool {
		return body.IsStream(info) || info.Path == backup.Path || long(r, info)
	}
}

// secure sets up authentication and authorization.
func (c *chain) secure(generic *genericapiserver.Config, cfg Config) error {
	if cfg.Profile != ProfileKCP {
		secure(generic, cfg.Connections, c.routes)
		return nil
	}
	objects, err := metadata.NewForConfig(generic.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("creating a client for the admission of syncers: %w", err)
	}
	clusters, err := syncerauth.NewClusters(objects)
	if err != nil {
		return err
	}
	c.syncers = syncerauth.Authorizer{Objects: objects, Clusters: clusters}
	secure(generic, cfg.Connections, c.routes, c.syncers)
	return nil
}

// behindAuthorization wraps a handler in the filters of a profile.
func (c *chain) behindAuthorization(inner http.Handler, profile Profile) http.Handler {
	if profile == ProfileKCP {
		patched := strategic.Wrap(inner, strategic.Config{CRD: c.crd, Serializer: legacyscheme.Codecs})
		return c.syncers.Wrap(protobuf.Wrap(patched, protobuf.Config{
			Defined:    func(resource schema.GroupResource) bool { return c.crd(resource) != nil },
			Serializer: legacyscheme.Codecs,
		}), legacyscheme.Codecs)
	}
	return strict.Wrap(inner, strict.Config{
		Groups: []string{rikv1alpha1.SchemeGroupVersion.Group}, Bounded: []string{appsv1.GroupName}, Scheme: legacyscheme.Scheme, Serializer: legacyscheme.Codecs, Lists: validation.Lists,
	})
}

// ofTerm marks the writes of the active controller with its term, which the datastore checks.
// The header of any other user is ignored.
func ofTerm(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if number := controllerterm.Of(r.Header); number > 0 {
			who, ok := genericapirequest.UserFrom(r.Context())
			if ok && (who.GetName() == rikv1alpha1.UserController || who.GetName() == user.APIServerUser) {
				r = r.WithContext(controllerterm.With(r.Context(), number))
			}
		}
		inner.ServeHTTP(w, r)
	})
}

// crd returns the CRD of a type, or nil. Call it only after the servers are built.
func (c *chain) crd(resource schema.GroupResource) *apiextensionsv1.CustomResourceDefinition {
	crd, err := c.crds.Lister().Get(resource.String())
	if err != nil {
		return nil
	}
	return crd
}

// create builds the servers, innermost first.
func (c *chain) create(cfg Config) error {
	// This skips it only for the native types: the other two configurations are copies. See
	// openapidoc.
	c.control.Generic.SkipOpenAPIInstallation = true
	control := c.control.Complete()
	notFound := notfoundhandler.New(control.Generic.Serializer, genericapifilters.NoMuxAndDiscoveryIncompleteKey)
	if cfg.Profile == ProfileKCP && cfg.Loss != nil {
		c.gate = crd.NewGate(c.crd)
		c.extensions.ExtraConfig.CRDRESTOptionsGetter = c.gate.Objects(c.extensions.ExtraConfig.CRDRESTOptionsGetter)
	}
	extensions, err := c.extensions.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(notFound))
	if err != nil {
		return fmt.Errorf("creating the server of the types of CRDs: %w", err)
	}
	native, err := control.New(name, c.behindGate(extensions.GenericAPIServer))
	if err != nil {
		return fmt.Errorf("creating the server of native types: %w", err)
	}
	client, err := kubernetes.NewForConfig(control.Generic.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("creating a client for the native types: %w", err)
	}
	providers, err := control.GenericStorageProviders(client.Discovery())
	if err != nil {
		return fmt.Errorf("listing the native types: %w", err)
	}
	if err := native.InstallAPIs(c.provide(cfg, providers)...); err != nil {
		return fmt.Errorf("installing the native types: %w", err)
	}
	handler := native.GenericAPIServer.Handler
	openapidoc.Install(handler.GoRestfulContainer, handler.NonGoRestfulMux, openapidoc.Config{
		V2: control.Generic.OpenAPIConfig, V3: control.Generic.OpenAPIV3Config, Tag: documentTag(cfg.Profile),
	})
	if err := addHooks(native.GenericAPIServer, cfg.Profile); err != nil {
		return err
	}
	c.crds = extensions.Informers.Apiextensions().V1().CustomResourceDefinitions()
	c.outermost, err = controlplaneapiserver.CreateAggregatorServer(c.aggregator.Complete(), native.GenericAPIServer, c.crds, true, priorities())
	if err != nil {
		return fmt.Errorf("creating the aggregator: %w", err)
	}
	return nil
}

// behindGate puts the gate in front of the server of types defined by CRDs.
func (c *chain) behindGate(extensions *genericapiserver.GenericAPIServer) genericapiserver.DelegationTarget {
	if c.gate == nil {
		return extensions
	}
	extensions.RegisterDestroyFunc(c.gate.Close)
	return c.gate.Delegate(extensions)
}

// provide adds the types that only one profile serves natively to those of both.
func (c *chain) provide(cfg Config, providers []controlplaneapiserver.RESTStorageProvider) []controlplaneapiserver.RESTStorageProvider {
	if cfg.Profile == ProfileCluster {
		c.rik = registry.NewProvider(registry.Config{Authorizer: c.control.Generic.Authorization.Authorizer, Sessions: cfg.Sessions, NodePorts: cfg.NodePorts})
		// These come first, so that a name that also exists in another group means rik's type.
		first := []controlplaneapiserver.RESTStorageProvider{c.rik, deployment.Provider{Authorizer: c.control.Generic.Authorization.Authorizer, NodePorts: cfg.NodePorts}}
		return append(first, providers...)
	}
	for i, provider := range providers {
		if provider.GroupName() == corev1.GroupName {
			providers[i] = core.Provider{RESTStorageProvider: provider}
		}
	}
	return append(providers, crd.Provider{
		Options: c.extensions.GenericConfig.RESTOptionsGetter, Gate: c.gate, Loss: cfg.Loss, Client: c.control.Generic.LoopbackClientConfig,
	})
}

// addHooks adds the hooks that create the server's own objects when it starts to serve.
func addHooks(server *genericapiserver.GenericAPIServer, profile Profile) error {
	if err := server.AddPostStartHook(rolesHook, ensureRoles); err != nil {
		return fmt.Errorf("adding the bootstrap roles: %w", err)
	}
	if profile != ProfileKCP {
		return nil
	}
	if err := server.AddPostStartHook(crdsHook, ensureCRDs); err != nil {
		return fmt.Errorf("adding the CRDs: %w", err)
	}
	return nil
}
