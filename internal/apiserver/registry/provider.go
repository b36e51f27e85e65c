// Package registry serves the group rik.dev. It creates the stores of all its resources and
// passes them to the API server.
package registry

import (
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install" // the kind Scale for workloads/scale

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/apiserver/registry/node"
	"rik.dev/rik/internal/apiserver/registry/tenant"
	"rik.dev/rik/internal/apiserver/registry/workload"
	"rik.dev/rik/internal/apiserver/registry/workloadrevision"
)

// Config configures the stores.
type Config struct {
	// Authorizer decides who may write privileged workloads, who may run commands over WebSockets
	// and who may export images. If it is nil, all of them are refused.
	Authorizer authorizer.Authorizer
	// Sessions connect to the nodes for log, exec and images. If it is nil, such requests are
	// answered with 503.
	Sessions instance.Sessions
	// NodePorts is the range of node ports that workloads may use. Zero means all.
	NodePorts validation.NodePorts
}

// Provider creates the REST storage of rik.dev. It implements RESTStorageProvider of
// k8s.io/kubernetes/pkg/controlplane/apiserver. It uses Kubernetes' legacyscheme, to which
// apis/rik/install must have been applied before.
type Provider struct {
	config Config
	stores Stores
}

// Stores are the parts of the storage, for callers in the same process.
type Stores struct {
	Workloads *workload.Storage
	Revisions *workloadrevision.Storage
	Instances *instance.Storage
	Nodes     *node.Storage
	Tenants   *tenant.Storage
}

// NewProvider creates a provider for one server.
func NewProvider(c Config) *Provider { return &Provider{config: c} }

// GroupName returns rik.dev.
func (p *Provider) GroupName() string { return rik.GroupName }

// Stores returns the storage. It is empty until NewRESTStorage has returned.
func (p *Provider) Stores() Stores { return p.stores }

// NewRESTStorage creates the storage of every resource that is enabled. By default all are.
func (p *Provider) NewRESTStorage(_ serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(rik.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	stores, err := NewStores(getter, p.config)
	if err != nil {
		return info, fmt.Errorf("creating the storage of %s: %w", rik.GroupName, err)
	}
	p.stores = stores
	info.VersionedResourcesStorageMap[rikv1alpha1.SchemeGroupVersion.Version] = stores.served()
	return info, nil
}

// NewStores creates the storage of every resource.
func NewStores(getter generic.RESTOptionsGetter, c Config) (s Stores, err error) {
	if s.Workloads, err = workload.NewStorage(getter, c.Authorizer, c.NodePorts); err != nil {
		return s, err
	}
	if s.Revisions, err = workloadrevision.NewStorage(getter); err != nil {
		return s, err
	}
	s.Workloads.Workload.Revisions = s.Revisions
	s.Instances, err = instance.NewStorage(getter, instance.Config{
		Workloads: s.Workloads.Workload, Revisions: s.Revisions, Sessions: c.Sessions, Authorizer: c.Authorizer,
	})
	if err != nil {
		return s, err
	}
	if s.Nodes, err = node.NewStorage(getter, node.Config{Sessions: c.Sessions, Authorizer: c.Authorizer}); err != nil {
		return s, err
	}
	s.Tenants, err = tenant.NewStorage(getter)
	return s, err
}

func (s Stores) served() map[string]rest.Storage {
	return map[string]rest.Storage{
		"workloads":             s.Workloads.Workload,
		"workloads/status":      s.Workloads.Status,
		"workloads/scale":       s.Workloads.Scale,
		"workloadrevisions":     s.Revisions.Revision,
		"instances":             s.Instances.Instance,
		"instances/status":      s.Instances.Status,
		"instances/log":         s.Instances.Log,
		"instances/exec":        s.Instances.Exec,
		"instances/portforward": s.Instances.Ports,
		"instances/suspend":     s.Instances.Suspend,
		"instances/resume":      s.Instances.Resume,
		"nodes":                 s.Nodes.Node,
		"nodes/status":          s.Nodes.Status,
		"nodes/images":          s.Nodes.Images,
		"tenants":               s.Tenants.Tenant,
		"tenants/status":        s.Tenants.Status,
	}
}

// all returns the stores that contain objects.
func (s Stores) all() []*genericregistry.Store {
	return []*genericregistry.Store{
		s.Workloads.Workload.Store, s.Revisions.Revision.Store, s.Instances.Instance.Store, s.Nodes.Node.Store, s.Tenants.Tenant.Store,
	}
}

// Ready says why the stores cannot be listed yet. It returns nil if they can.
func (s Stores) Ready() error {
	var errs []error
	for _, one := range s.all() {
		errs = append(errs, one.ReadinessCheck())
	}
	return errors.Join(errs...)
}

// Destroy ends the background work of the stores. A server that served them does that itself.
func (s Stores) Destroy() {
	for _, one := range s.all() {
		one.Destroy()
	}
}
