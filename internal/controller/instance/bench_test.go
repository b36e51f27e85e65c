package instance

import (
	"context"
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/store"
)

// same is a store that returns what it stores, without a copy.
type same struct{ store.Instances }

func (same) Bind(_ context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return in, nil
}

func (same) UpdateStatus(_ context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return in, nil
}

type deaf struct{}

func (deaf) Acknowledge(types.UID, string, bool) {}
func (deaf) Tombstone(Tombstone)                 {}

// reconciler returns a reconciler over a view with one instance, as the API server stores it.
func reconciler(s store.Instances, changes ...func(*rikv1alpha1.Instance)) (*Reconciler, *rikv1alpha1.Instance) {
	in := object("Pending", "", func(in *rikv1alpha1.Instance) {
		in.Namespace, in.ResourceVersion = "team", "7"
		in.Labels = map[string]string{"app": "web", rikv1alpha1.LabelWorkload: "web", rikv1alpha1.LabelRevision: "web-1"}
		in.Annotations = map[string]string{"example.com/note": "kept"}
		in.OwnerReferences = []metav1.OwnerReference{{Kind: "Workload", Name: "web", UID: "w"}}
	})
	for _, c := range changes {
		c(in)
	}
	view := index.NewInstances()
	r := New(Config{
		View: view, Store: s, Scheduler: deaf{}, Nodes: func(string) NodeFacts { return NodeFacts{Exists: true, LastSeen: true, Address: "192.0.2.7"} },
		Contact: func() Contact { return Contact{Connected: true} }, Events: events.NewFakeRecorder(100),
		Logger: slog.New(slog.DiscardHandler), Now: time.Now, Workers: 1,
	})
	view.Observe(in)
	return r, in
}

func running(sequence int64) *Observation {
	o := seen("Running", sequence)
	o.Status.Address, o.Status.StartedAt, o.Status.HostPorts = "10.1.0.2", &noon, []int32{30080}
	o.Status.Containers = []rikv1alpha1.ContainerStatus{{Name: "main", State: "Running", StartedAt: &noon}, {Name: "side", State: "Running", StartedAt: &noon}}
	return o
}

func bind(in *rikv1alpha1.Instance) {
	in.Spec.NodeName, in.Status.Phase = "n", rikv1alpha1.InstanceCreating
}

// BenchmarkBind is a pass that binds an instance, without the store.
func BenchmarkBind(b *testing.B) {
	r, in := reconciler(same{})
	b.ReportAllocs()
	for b.Loop() {
		r.news[in.UID] = &news{binding: &Binding{Node: "n", HostPorts: []int32{30080}}}
		if _, err := r.reconcile(b.Context(), index.Key(in)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStatus is a pass that writes the status from an observation, without the store.
func BenchmarkStatus(b *testing.B) {
	r, in := reconciler(same{}, bind)
	r.news[in.UID] = &news{observation: running(3)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.reconcile(b.Context(), index.Key(in)); err != nil {
			b.Fatal(err)
		}
	}
}
