package controller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/controller/store"
	"rik.dev/rik/internal/testkit/apiprocess"
	"rik.dev/rik/internal/testkit/served"
)

// cluster is an API server, a controller and a scripted scheduler with nodes. Its tests run one
// after the other, because a controller works on the whole cluster.
type cluster struct {
	*testing.T
	api       *apiprocess.Server
	client    client.Client
	namespace string
	scheduler *scripted
	writes    *atomic.Int64
	config    controller.Config

	controller *controller.Controller
	// dial connects to the current scheduler server. loseScheduler stops that server.
	dial          atomic.Pointer[func(context.Context) (*grpc.ClientConn, error)]
	loseScheduler func()
	// stop ends the controller and the scheduler. leaveOnly ends only the controller.
	stop, leaveOnly func()
}

// asController returns a configuration with the identity of the controller in a cluster.
func asController(c *rest.Config) *rest.Config {
	out := rest.CopyConfig(c)
	out.Impersonate = rest.ImpersonationConfig{UserName: rikv1alpha1.UserController, Groups: []string{"system:masters"}}
	return out
}

func start(t *testing.T, change func(*controller.Config), nodes ...string) *cluster {
	t.Helper()
	c := &cluster{T: t, api: apiprocess.Shared(t), scheduler: newScripted(nodes...), writes: &atomic.Int64{}}
	var err error
	c.client, err = client.New(c.api.Config, client.Options{Scheme: controller.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	c.namespace = c.api.Namespace(t)
	c.config = controller.Config{
		RestConfig: asController(c.api.Config), Instances: counting{writer(t, c.api), c.writes},
		Identity: "test", Logger: slog.New(slog.DiscardHandler), ReplaceAfter: time.Nanosecond,
	}
	if change != nil {
		change(&c.config)
	}
	t.Cleanup(c.wipe)
	c.run()
	return c
}

// run starts a controller and a server for the scheduler. stop ends both.
func (c *cluster) run() {
	c.Helper()
	c.serveScheduler()
	c.config.SchedulerDial = func(ctx context.Context) (*grpc.ClientConn, error) { return (*c.dial.Load())(ctx) }
	var err error
	c.controller, err = controller.New(c.config)
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.controller.Run(ctx) }()
	leave := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.Errorf("Run = %v", err)
		}
	})
	c.leaveOnly = leave
	c.stop = func() {
		leave()
		c.loseScheduler()
	}
	c.Cleanup(c.stop)
	select {
	case <-c.controller.Ready():
	case err := <-done:
		c.Fatalf("the controller ended: %v", err)
	case <-time.After(served.Timeout):
		c.Fatal("the controller is not ready")
	}
}

// serveScheduler starts the scheduler's server, or starts it again after loseScheduler.
func (c *cluster) serveScheduler() {
	c.Helper()
	dial, stop := c.scheduler.serve(c)
	c.dial.Store(&dial)
	c.loseScheduler = stop
}

// wipe deletes all objects before the next test.
func (c *cluster) wipe() {
	c.stop()
	ctx := context.Background()
	for _, list := range []client.ObjectList{
		&appsv1.DeploymentList{}, &rikv1alpha1.InstanceList{}, &rikv1alpha1.WorkloadList{}, &rikv1alpha1.WorkloadRevisionList{},
		&rikv1alpha1.NodeList{}, &rikv1alpha1.TenantList{},
	} {
		if err := c.client.List(ctx, list); err != nil {
			c.Errorf("listing what is left: %v", err)
		}
		if l, ok := list.(*rikv1alpha1.InstanceList); ok {
			c.unchanged(l.Items)
		}
		for _, o := range objects(list) {
			held, zero := len(o.GetFinalizers()) > 0, int64(0)
			if err := c.client.Delete(ctx, o, &client.DeleteOptions{GracePeriodSeconds: &zero}); client.IgnoreNotFound(err) != nil {
				c.Errorf("deleting %s: %v", o.GetName(), err)
			}
			if !held {
				continue
			}
			if err := c.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); client.IgnoreNotFound(err) != nil {
				c.Errorf("freeing %s: %v", o.GetName(), err)
			}
		}
	}
}

// unchanged checks that nobody has changed an object of the index, which all readers share: it is
// what the API server has for its version. It returns how many the index has in that version.
func (c *cluster) unchanged(stored []rikv1alpha1.Instance) (compared int) {
	c.Helper()
	for i := range stored {
		want := &stored[i]
		in := c.controller.Instances().ByUID(want.UID)
		if in == nil || in.ResourceVersion != want.ResourceVersion {
			continue // written after the controller ended
		}
		got := in.DeepCopy()
		got.TypeMeta, got.ManagedFields = want.TypeMeta, want.ManagedFields
		if !equality.Semantic.DeepEqual(got, want) {
			c.Errorf("instance %s of the index was changed: %+v, want %+v", want.Name, got, want)
		}
		compared++
	}
	return compared
}

func objects(list client.ObjectList) []client.Object {
	var out []client.Object
	switch l := list.(type) {
	case *appsv1.DeploymentList:
		for i := range l.Items {
			out = append(out, &l.Items[i])
		}
	case *rikv1alpha1.InstanceList:
		for i := range l.Items {
			out = append(out, &l.Items[i])
		}
	case *rikv1alpha1.WorkloadList:
		for i := range l.Items {
			out = append(out, &l.Items[i])
		}
	case *rikv1alpha1.WorkloadRevisionList:
		for i := range l.Items {
			out = append(out, &l.Items[i])
		}
	case *rikv1alpha1.NodeList:
		for i := range l.Items {
			out = append(out, &l.Items[i])
		}
	case *rikv1alpha1.TenantList:
		for i := range l.Items {
			out = append(out, &l.Items[i])
		}
	}
	return out
}

// writer writes instances as a controller does that runs next to its API server.
func writer(t *testing.T, api *apiprocess.Server) store.Instances {
	t.Helper()
	upstream, err := client.New(asController(api.Config), client.Options{Scheme: controller.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return store.OverClient(upstream)
}

// counting counts the writes of instances.
type counting struct {
	store.Instances
	n *atomic.Int64
}

func (c counting) Create(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	c.n.Add(1)
	return c.Instances.Create(ctx, in)
}

func (c counting) Bind(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	c.n.Add(1)
	return c.Instances.Bind(ctx, in)
}

func (c counting) Update(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	c.n.Add(1)
	return c.Instances.Update(ctx, in)
}

func (c counting) UpdateStatus(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	c.n.Add(1)
	return c.Instances.UpdateStatus(ctx, in)
}

func (c counting) Delete(ctx context.Context, namespace, name string, uid types.UID, grace *int64) error {
	c.n.Add(1)
	return c.Instances.Delete(ctx, namespace, name, uid, grace)
}

// eventually polls until check returns an empty string. If that does not happen in time, it
// reports the last result.
func (c *cluster) eventually(what string, check func() string) {
	c.Helper()
	deadline := time.Now().Add(served.Timeout)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		last := check()
		if last == "" {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%s: %s", what, last)
		}
		<-ticker.C
	}
}

func (c *cluster) create(o client.Object) {
	c.Helper()
	if err := c.client.Create(c.Context(), o); err != nil {
		c.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

// change updates an object and retries on conflicts.
func change[T client.Object](c *cluster, key types.NamespacedName, o T, edit func(T)) {
	c.Helper()
	c.eventually("updating "+key.String(), func() string {
		if err := c.client.Get(c.Context(), key, o); err != nil {
			return err.Error()
		}
		edit(o)
		if err := c.client.Update(c.Context(), o); err != nil {
			return err.Error()
		}
		return ""
	})
}

func (c *cluster) instances() []rikv1alpha1.Instance {
	c.Helper()
	var list rikv1alpha1.InstanceList
	if err := c.client.List(c.Context(), &list, client.InNamespace(c.namespace)); err != nil {
		c.Fatal(err)
	}
	return list.Items
}

// wantRunning waits until exactly n instances of a workload exist, all running.
func (c *cluster) wantRunning(workload string, n int) []rikv1alpha1.Instance {
	c.Helper()
	var of []rikv1alpha1.Instance
	c.eventually(fmt.Sprintf("%d running instances of %s", n, workload), func() string {
		of = slices.DeleteFunc(c.instances(), func(in rikv1alpha1.Instance) bool { return in.Spec.Workload != workload })
		bad := slices.DeleteFunc(slices.Clone(of), func(in rikv1alpha1.Instance) bool {
			return in.Status.Phase == rikv1alpha1.InstanceRunning && in.DeletionTimestamp == nil
		})
		if len(of) == n && len(bad) == 0 {
			return ""
		}
		return fmt.Sprintf("%d exist, not running: %s", len(of), describe(bad))
	})
	return of
}

func describe(list []rikv1alpha1.Instance) string {
	out := ""
	for i := range list {
		in := &list[i]
		out += fmt.Sprintf("%s(%s %s node=%q deleting=%v) ", in.Name, in.Status.Phase, in.Status.Reason, in.Spec.NodeName, in.DeletionTimestamp != nil)
	}
	return out
}

func (c *cluster) workload(name string) *rikv1alpha1.Workload {
	c.Helper()
	var w rikv1alpha1.Workload
	if err := c.client.Get(c.Context(), types.NamespacedName{Namespace: c.namespace, Name: name}, &w); err != nil {
		c.Fatal(err)
	}
	return &w
}

// settled restarts the controller and checks that the second pass over a converged cluster
// writes no instance.
func (c *cluster) settled() {
	c.Helper()
	c.eventually("every status is final", c.unfinished)
	c.stop()
	before := c.snapshot()
	writes := c.writes.Load()
	c.run()
	c.eventually("the scheduler receives everything again", func() string {
		out := "not synced"
		c.scheduler.do(func() {
			if c.scheduler.synced {
				out = ""
			}
		})
		return out
	})
	// A new workload runs through all steps. By then, all other writes of the second pass would
	// have been made.
	c.create(&rikv1alpha1.Workload{
		ObjectMeta: automatic(c.namespace, "sentinel", 1).ObjectMeta, Spec: automatic(c.namespace, "sentinel", 1).Spec,
	})
	c.wantRunning("sentinel", 1)
	if got := c.writes.Load() - writes; got != 3 {
		c.Errorf("a second look and one new instance took %d writes, want 3: the new one's", got)
	}
	after := c.snapshot()
	for name, version := range before {
		if after[name] != version {
			c.Errorf("%s was written by the second look", name)
		}
	}
}

// unfinished returns what the controller has not written yet: statuses, which it writes at most
// once a second, and the removal of revisions without an owner.
func (c *cluster) unfinished() string {
	c.Helper()
	var workloads rikv1alpha1.WorkloadList
	var revisions rikv1alpha1.WorkloadRevisionList
	if err := errors.Join(
		c.client.List(c.Context(), &workloads, client.InNamespace(c.namespace)),
		c.client.List(c.Context(), &revisions, client.InNamespace(c.namespace)),
	); err != nil {
		return err.Error()
	}
	exist := map[string]bool{}
	for i := range workloads.Items {
		w := &workloads.Items[i]
		exist[w.Name] = true
		live := int32(0)
		for _, in := range c.instances() {
			if in.Spec.Workload == w.Name {
				live++
			}
		}
		if w.Status.Replicas != live || w.Status.ReadyReplicas != live || w.Status.ObservedGeneration != w.Generation {
			return fmt.Sprintf("workload %s of %d instances says %+v", w.Name, live, w.Status)
		}
		if p := meta.FindStatusCondition(w.Status.Conditions, rikv1alpha1.WorkloadProgressing); p != nil && p.Reason != "Complete" {
			return fmt.Sprintf("workload %s: %+v", w.Name, p)
		}
	}
	for i := range revisions.Items {
		if !exist[revisions.Items[i].Labels[rikv1alpha1.LabelWorkload]] {
			return revisions.Items[i].Name + " is left"
		}
	}
	return ""
}

// snapshot maps instances, workloads, revisions and nodes to their resource versions.
func (c *cluster) snapshot() map[string]string {
	c.Helper()
	out := map[string]string{}
	for _, list := range []client.ObjectList{
		&appsv1.DeploymentList{}, &rikv1alpha1.InstanceList{}, &rikv1alpha1.WorkloadList{}, &rikv1alpha1.WorkloadRevisionList{}, &rikv1alpha1.NodeList{},
	} {
		if err := c.client.List(c.Context(), list); err != nil {
			c.Fatal(err)
		}
		for _, o := range objects(list) {
			out[fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())] = o.GetResourceVersion()
		}
	}
	return out
}
