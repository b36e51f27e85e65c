package inprocess_test

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/registry"
	"rik.dev/rik/internal/apiserver/registry/inprocess"
)

// memory is a datastore with one instance, which a write does not change. The benchmarks thus
// measure what this process does for a write, and not the datastore.
type memory struct {
	storage.Interface
	stored *rik.Instance
}

// Versioner implements storage.Interface.
func (memory) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

// GuaranteedUpdate passes the writer a copy, as the watch cache does.
func (m memory) GuaranteedUpdate(_ context.Context, key string, out runtime.Object, _ bool, p *storage.Preconditions, try storage.UpdateFunc, _ runtime.Object) error {
	have := m.stored.DeepCopy()
	if err := p.Check(key, have); err != nil {
		return err
	}
	next, _, err := try(have, storage.ResponseMeta{})
	if err != nil {
		return err
	}
	*out.(*rik.Instance) = *next.(*rik.Instance)
	return nil
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (m memory) GetRESTOptions(r schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.NewDefaultConfig("/", nil)
	return generic.RESTOptions{
		StorageConfig: config.ForResource(r), ResourcePrefix: r.String(),
		Decorator: func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
			return m, func() {}, nil
		},
	}, nil
}

// remember returns the writer of a datastore with one instance, and that instance.
func remember(b *testing.B, node string) (*inprocess.Instances, *rikv1alpha1.Instance) {
	b.Helper()
	f := setup(b)
	in := f.create(b, "web-1")
	in.Spec.NodeName = node
	in.Status.Phase = rikv1alpha1.InstanceCreating
	if node != "" {
		var err error
		if in, err = f.instances.Update(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
	m := memory{stored: &rik.Instance{ObjectMeta: in.ObjectMeta}}
	m.stored.Spec.Workload, m.stored.Spec.Revision, m.stored.Spec.NodeName = in.Spec.Workload, in.Spec.Revision, node
	m.stored.Status.Phase = rik.InstancePhase(in.Status.Phase)
	stores, err := registry.NewStores(m, registry.Config{})
	if err != nil {
		b.Fatal(err)
	}
	return inprocess.NewInstances(stores.Instances), in
}

// BenchmarkBind is the write of a binding, without the datastore.
func BenchmarkBind(b *testing.B) {
	instances, in := remember(b, "")
	in.Spec.NodeName = "n1"
	in.Status = rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceCreating, HostAddress: "192.0.2.7", HostPorts: []int32{30080}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := instances.Update(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStatus is the write of the status of a bound instance, without the datastore.
func BenchmarkStatus(b *testing.B) {
	instances, in := remember(b, "n1")
	in.Status = running(3)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := instances.UpdateStatus(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}
