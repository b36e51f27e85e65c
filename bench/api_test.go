package bench

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/rikcluster"
)

const namespace = "default"

// dial returns a client of the cluster's administrator. It uses protobuf, so that the benchmark
// uses little CPU time.
func dial(b *testing.B, c *rikcluster.Cluster) client.WithWatch {
	b.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.DataDir(), "admin.kubeconfig"))
	if err != nil {
		b.Fatal(err)
	}
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	scheme := runtime.NewScheme()
	if err := rikv1alpha1.AddToScheme(scheme); err != nil {
		b.Fatal(err)
	}
	api, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		b.Fatal(err)
	}
	return api
}

// follower receives the events of instances that match a selector. The server ends a watch that
// it cannot serve fast enough. The next watch begins with all existing instances, so only
// instances that were created and deleted in between are missed.
type follower struct {
	b        *testing.B
	api      client.WithWatch
	selector fields.Selector
	events   watch.Interface
}

func follow(b *testing.B, api client.WithWatch, selector fields.Selector) *follower {
	b.Helper()
	f := &follower{b: b, api: api, selector: selector}
	f.open()
	b.Cleanup(func() { f.events.Stop() })
	return f
}

func (f *follower) open() {
	f.b.Helper()
	var err error
	f.events, err = f.api.Watch(f.b.Context(), &rikv1alpha1.InstanceList{}, &client.ListOptions{Namespace: namespace, FieldSelector: f.selector})
	if err != nil {
		f.b.Fatal(err)
	}
}

// await receives events until one satisfies the condition, and returns the time at which it
// arrived.
func (f *follower) await(what string, satisfies func(watch.EventType, *rikv1alpha1.Instance) bool) time.Time {
	f.b.Helper()
	expired := time.After(timeout)
	var last *rikv1alpha1.Instance
	ended := 0
	defer func() {
		if ended > 0 {
			f.b.Logf("waiting for %s: the server ended the watch %d times", what, ended)
		}
	}()
	for {
		select {
		case <-expired:
			f.b.Fatalf("waiting for %s: the last event was of %+v", what, last)
		case e, ok := <-f.events.ResultChan():
			if !ok {
				ended++
				f.open()
				continue
			}
			in, isInstance := e.Object.(*rikv1alpha1.Instance)
			if !isInstance {
				f.b.Fatalf("waiting for %s: the watch answered %v", what, e.Object)
			}
			if satisfies(e.Type, in) {
				return time.Now()
			}
			last = in
		}
	}
}

// workload returns a workload with one container; with nil replicas it is Manual.
func workload(name, image, script string, replicas *int32) *rikv1alpha1.Workload {
	grace := int64(2)
	w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	w.Spec.Kind = rikv1alpha1.KindPod
	w.Spec.TerminationGracePeriodSeconds = &grace
	w.Spec.Containers = []rikv1alpha1.Container{{Name: "main", Image: image, Command: []string{"/bin/sh", "-c", script}}}
	if replicas != nil {
		w.Spec.Deploy, w.Spec.Replicas = rikv1alpha1.DeployAutomatic, replicas
	}
	return w
}

func create(ctx context.Context, api client.Client, workload, name string) error {
	return api.Create(ctx, &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       rikv1alpha1.InstanceSpec{Workload: workload},
	})
}

// datastore reads from the cluster's etcd what was written. It does so from outside, so that it
// includes writes that rik does not count.
type datastore struct {
	b      *testing.B
	client *clientv3.Client
}

func openDatastore(b *testing.B, c *rikcluster.Cluster) datastore {
	b.Helper()
	found, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"unix://" + filepath.Join(c.DataDir(), "datastore", "run", "client.sock")}, DialTimeout: timeout,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = found.Close() })
	return datastore{b, found}
}

// instances returns the number of instances, and the revision: the total number of writes since
// the datastore was created.
func (d datastore) instances() (count, revision int64) {
	d.b.Helper()
	r, err := d.client.Get(d.b.Context(), instancesPrefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		d.b.Fatal(err)
	}
	return r.Count, r.Header.Revision
}

const instancesPrefix = "/registry/instances/"
