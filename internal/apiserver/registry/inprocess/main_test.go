package inprocess_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/api/rik/revision"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/registry"
	"rik.dev/rik/internal/apiserver/registry/inprocess"
	"rik.dev/rik/internal/apiserver/registry/registrytest"
)

var etcd *registrytest.Server

func TestMain(m *testing.M) { registrytest.Main(m, &etcd) }

// fixtures counts the fixtures: a benchmark is run several times under one name.
var fixtures atomic.Int64

// fixture is the storage, and a namespace with one workload.
type fixture struct {
	namespace string
	instances *inprocess.Instances
	stamp     *rikv1alpha1.WorkloadRevision
}

func setup(t testing.TB) *fixture {
	t.Helper()
	stores := etcd.Stores(t, registry.Config{})
	namespace := fmt.Sprintf("team-%d", fixtures.Add(1))
	user := registrytest.As(context.Background(), namespace, "ann")
	replicas, grace, limit := int32(1), int64(7), int32(10)
	made, err := stores.Workloads.Workload.Create(user, &rik.Workload{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace},
		Spec: rik.WorkloadSpec{
			Deploy: rik.DeployManual, Replicas: &replicas, RevisionHistoryLimit: &limit, Strategy: rik.UpdateStrategy{Type: rik.Recreate},
			InstanceTemplate: rik.InstanceTemplate{
				Kind: rik.KindPod, RestartPolicy: rik.RestartAlways, OnDisconnect: rik.DisconnectKeep, TerminationGracePeriodSeconds: &grace,
				Labels:     map[string]string{"app": "web", "tier": "front"},
				Containers: []rik.Container{{Name: "main", Image: "nginx:1", ImagePullPolicy: rik.PullIfNotPresent}},
			},
		},
	}, nil, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stores.Instances.Instance.Create(user, &rik.Instance{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: rik.InstanceSpec{Workload: made.(*rik.Workload).Name},
	}, nil, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stamp, err := stores.Revisions.Get(user, first.(*rik.Instance).Spec.Revision)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{namespace: namespace, instances: inprocess.NewInstances(stores.Instances), stamp: stamp}
}

// instance returns a new instance as the controller makes it.
func (f *fixture) instance(name string) *rikv1alpha1.Instance {
	in := &rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"example.com/note": "kept"}}}
	revision.Stamp(in, f.stamp)
	return in
}

func (f *fixture) create(t testing.TB, name string) *rikv1alpha1.Instance {
	t.Helper()
	out, err := f.instances.Create(context.Background(), f.instance(name))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// running returns the status of an instance with two containers.
func running(sequence int64) rikv1alpha1.InstanceStatus {
	started := metav1.Now()
	container := rikv1alpha1.ContainerStatus{Name: "main", State: rikv1alpha1.ContainerRunning, Ready: true, StartedAt: &started}
	side := container
	side.Name = "side"
	return rikv1alpha1.InstanceStatus{
		Phase: rikv1alpha1.InstanceRunning, Ready: true, Sequence: sequence, Address: "10.1.0.2", HostAddress: "192.0.2.7",
		StartedAt: &started, HostPorts: []int32{30080}, Containers: []rikv1alpha1.ContainerStatus{container, side},
	}
}
