package core

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/printers"
	"k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// services is the storage of services. Kubernetes' own storage always allocates addresses and
// ports and deletes endpoints.
type services struct{ *genericregistry.Store }

// newServices creates the storage with Kubernetes' own strategy.
func newServices(getter generic.RESTOptionsGetter) (*services, error) {
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &core.Service{} },
		NewListFunc:               func() runtime.Object { return &core.ServiceList{} },
		PredicateFunc:             service.Matcher,
		DefaultQualifiedResource:  core.Resource("services"),
		SingularQualifiedResource: core.Resource("service"),
		ReturnDeletedObject:       true,

		CreateStrategy:      service.Strategy,
		UpdateStrategy:      service.Strategy,
		DeleteStrategy:      service.Strategy,
		ResetFieldsStrategy: service.Strategy,

		BeginCreate: beginCreate,
		BeginUpdate: beginUpdate,

		TableConvertor: printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(internalversion.AddHandlers)},
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: service.GetAttrs}); err != nil {
		return nil, err
	}
	return &services{store}, nil
}

// ShortNames implements rest.ShortNamesProvider.
func (*services) ShortNames() []string { return []string{"svc"} }

// Categories implements rest.CategoriesProvider.
func (*services) Categories() []string { return []string{"all"} }

func (s *services) status() *serviceStatus {
	store := *s.Store
	store.UpdateStrategy, store.ResetFieldsStrategy = service.StatusStrategy, service.StatusStrategy
	store.BeginUpdate = nil
	return &serviceStatus{&store}
}

// beginCreate replaces the function in which Kubernetes would allocate.
func beginCreate(_ context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
	joinAddresses(obj.(*core.Service), &core.Service{})
	return finished, nil
}

func beginUpdate(_ context.Context, obj, old runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
	joinAddresses(obj.(*core.Service), old.(*core.Service))
	return finished, nil
}

// finished does nothing, because there is nothing to release after a write.
func finished(context.Context, bool) {}

// joinAddresses makes clusterIPs consistent with clusterIP, as Kubernetes does, for a client
// that changes only the latter. The two must agree, and most clients, which only ever write
// None, use only the older field.
func joinAddresses(now, before *core.Service) {
	kept := len(now.Spec.ClusterIPs) == 0 || slices.Equal(now.Spec.ClusterIPs, before.Spec.ClusterIPs)
	switch {
	case !kept: // the client sets both
	case now.Spec.ClusterIP == before.Spec.ClusterIP:
		now.Spec.ClusterIPs = before.Spec.ClusterIPs
	case now.Spec.ClusterIP == "":
		now.Spec.ClusterIPs = nil
	default:
		now.Spec.ClusterIPs = []string{now.Spec.ClusterIP}
	}
}

// serviceStatus is the status subresource.
type serviceStatus struct{ store *genericregistry.Store }

var (
	_ rest.Patcher             = &serviceStatus{}
	_ rest.ResetFieldsStrategy = &serviceStatus{}
	_ rest.TableConvertor      = &serviceStatus{}
)

// New implements rest.Storage.
func (s *serviceStatus) New() runtime.Object { return s.store.New() }

// Destroy implements rest.Storage. The storage belongs to services.
func (*serviceStatus) Destroy() {}

// Get implements rest.Getter.
func (s *serviceStatus) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// Update implements rest.Updater. It never creates an object.
func (s *serviceStatus) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, onCreate rest.ValidateObjectFunc, onUpdate rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, info, onCreate, onUpdate, false, options)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (s *serviceStatus) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}

// ConvertToTable implements rest.TableConvertor.
func (s *serviceStatus) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, object, options)
}
