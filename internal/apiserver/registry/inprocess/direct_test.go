package inprocess_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// scribble changes everything that an instance points to.
func scribble(in *rikv1alpha1.Instance) {
	for _, m := range []map[string]string{in.Labels, in.Annotations} {
		for k := range m {
			m[k] = "scribbled"
		}
	}
	for i := range in.Finalizers {
		in.Finalizers[i] = "scribbled"
	}
	for i := range in.OwnerReferences {
		in.OwnerReferences[i].UID = "scribbled"
	}
	if in.DeletionTimestamp != nil {
		*in.DeletionTimestamp, *in.DeletionGracePeriodSeconds = metav1.Unix(1, 0), -1
	}
	if in.Status.StartedAt != nil {
		*in.Status.StartedAt = metav1.Unix(1, 0)
	}
	for i := range in.Status.HostPorts {
		in.Status.HostPorts[i] = -1
	}
	for i := range in.Status.Conditions {
		in.Status.Conditions[i].Type = "scribbled"
	}
	for i := range in.Status.Containers {
		in.Status.Containers[i].Name = "scribbled"
		*in.Status.Containers[i].StartedAt = metav1.Unix(1, 0)
	}
}

// TestArgumentsAndResultsAreSeparate: the controller passes parts of shared objects, and keeps
// what it gets. A write therefore changes no argument, and an argument and a result share
// nothing, also with what the storage keeps.
func TestArgumentsAndResultsAreSeparate(t *testing.T) {
	t.Parallel()
	f := setup(t)
	ctx := t.Context()
	arg := f.instance("web-1")
	write := func(step string, write func(context.Context, *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error)) *rikv1alpha1.Instance {
		t.Helper()
		before := arg.DeepCopy()
		result, err := write(ctx, arg)
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		if diff := cmp.Diff(before, arg); diff != "" {
			t.Errorf("%s changed its argument (-before +after):\n%s", step, diff)
		}
		answer := result.DeepCopy()
		scribble(arg)
		if diff := cmp.Diff(answer, result); diff != "" {
			t.Errorf("%s: the result shares with the argument (-result +after the argument changed):\n%s", step, diff)
		}
		scribble(result)
		stored, err := f.instances.Get(ctx, f.namespace, answer.Name)
		if apierrors.IsNotFound(err) {
			return answer
		}
		if diff := cmp.Diff(answer, stored); err != nil || diff != "" {
			t.Errorf("%s: the storage shares with the result (-result +stored), %v:\n%s", step, err, diff)
		}
		return answer
	}
	arg = write("Create", f.instances.Create)
	arg.Spec.NodeName, arg.Status = "n1", rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceCreating, HostPorts: []int32{30080}}
	arg = write("Update, to bind", f.instances.Update)
	for i := range int64(3) {
		arg.Status = running(i + 1)
		// The status is written from the watch cache's object if the cache has it already.
		arg = write("UpdateStatus", f.instances.UpdateStatus)
		if arg.Spec.NodeName != "n1" || arg.Labels["tier"] != "front" || arg.Annotations["example.com/note"] != "kept" || len(arg.Status.Containers) != 2 {
			t.Fatalf("after UpdateStatus: %+v", arg)
		}
	}
	if err := f.instances.Delete(ctx, f.namespace, arg.Name, arg.UID, nil); err != nil {
		t.Fatal(err)
	}
	var err error
	if arg, err = f.instances.Get(ctx, f.namespace, arg.Name); err != nil || arg.DeletionTimestamp == nil {
		t.Fatalf("after Delete: %+v, %v", arg, err)
	}
	arg.Finalizers = nil
	write("Update, to release", f.instances.Update)
	if _, err := f.instances.Get(ctx, f.namespace, arg.Name); !apierrors.IsNotFound(err) {
		t.Errorf("after the release Get = %v, want NotFound", err)
	}
}

// TestOneArgumentForManyWriters: writers and readers of one object do not race. The race detector
// sees a write to the shared object.
func TestOneArgumentForManyWriters(t *testing.T) {
	t.Parallel()
	f := setup(t)
	shared := f.create(t, "web-1")
	shared.Spec.NodeName = "n1"
	for round := range 3 {
		var group sync.WaitGroup
		results := make(chan *rikv1alpha1.Instance, 8)
		status := running(int64(round + 1))
		for i := range cap(results) {
			group.Go(func() {
				next := *shared
				write := f.instances.Update
				if i%2 == 1 {
					next.Status, write = status, f.instances.UpdateStatus
				}
				out, err := write(t.Context(), &next)
				if err == nil {
					results <- out
				} else if !apierrors.IsConflict(err) {
					t.Error(err)
				}
				_ = shared.DeepCopy() // reads all of it
			})
		}
		group.Wait()
		close(results)
		won := 0
		for out := range results {
			won, shared = won+1, out
		}
		if won == 0 {
			t.Fatal("no write succeeded")
		}
	}
}
