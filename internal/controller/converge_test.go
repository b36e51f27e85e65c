package controller_test

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// TestAutomaticConverges also counts the writes: three until an instance is running.
func TestAutomaticConverges(t *testing.T) {
	c := start(t, nil, "node-a", "node-b")
	const n = 20
	c.create(automatic(c.namespace, "web", n))
	list := c.wantRunning("web", n)
	if got := c.writes.Load(); got != 3*n {
		t.Errorf("%d instances took %d writes, want %d", n, got, 3*n)
	}
	for i := range list {
		in := &list[i]
		if in.Status.HostAddress != "192.0.2.1" || in.Status.Address != "10.0.0.1" || !in.Status.Ready {
			t.Errorf("status of %s = %+v", in.Name, in.Status)
		}
		c.scheduler.do(func() {
			if got := c.scheduler.starts[string(in.UID)]; got != 1 {
				t.Errorf("%s was started %d times", in.Name, got)
			}
		})
	}
	c.eventually("the index is current", func() string {
		if got := c.unchanged(c.instances()); got != n {
			return fmt.Sprintf("it has %d of %d instances as they are stored", got, n)
		}
		return ""
	})
	c.eventually("the workload's status", func() string {
		w := c.workload("web")
		if w.Status.ReadyReplicas == n && meta.IsStatusConditionTrue(w.Status.Conditions, rikv1alpha1.WorkloadAvailable) &&
			meta.FindStatusCondition(w.Status.Conditions, rikv1alpha1.WorkloadProgressing).Reason == "Complete" {
			return ""
		}
		return fmt.Sprintf("%+v", w.Status)
	})
	c.settled()
}

// TestNodesAppear: Nodes are created from the scheduler's reports, with the labels that nodes
// may set.
func TestNodesAppear(t *testing.T) {
	c := start(t, nil, "node-a")
	c.eventually("the node", func() string {
		var n rikv1alpha1.Node
		if err := c.client.Get(t.Context(), types.NamespacedName{Name: "node-a"}, &n); err != nil {
			return err.Error()
		}
		if !meta.IsStatusConditionTrue(n.Status.Conditions, rikv1alpha1.NodeReady) ||
			n.Labels["disk"] != "fast" || n.Labels[rikv1alpha1.LabelArch] != "amd64" || n.Labels[rikv1alpha1.LabelHostname] != "node-a" {
			return fmt.Sprintf("%+v", n)
		}
		return ""
	})
}

// TestRolloutAndRollback rolls out a new revision and rolls it back.
func TestRolloutAndRollback(t *testing.T) {
	c := start(t, nil, "node-a", "node-b")
	key := types.NamespacedName{Namespace: c.namespace, Name: "web"}
	c.create(automatic(c.namespace, "web", 4))
	first := c.wantRunning("web", 4)[0].Spec.Revision
	change(c, key, &rikv1alpha1.Workload{}, func(w *rikv1alpha1.Workload) { w.Spec.Containers[0].Image = "example.org/app:2" })
	rolled := func(what string, is func(revision string) bool) {
		t.Helper()
		c.eventually(what, func() string {
			list := c.instances()
			for i := range list {
				if !is(list[i].Spec.Revision) || list[i].Status.Phase != rikv1alpha1.InstanceRunning {
					return describe(list)
				}
			}
			if len(list) != 4 {
				return describe(list)
			}
			return ""
		})
	}
	rolled("the new revision", func(r string) bool { return r != first })
	change(c, key, &rikv1alpha1.Workload{}, func(w *rikv1alpha1.Workload) {
		metav1.SetMetaDataAnnotation(&w.ObjectMeta, rikv1alpha1.AnnotationRollback, "1")
	})
	rolled("the old revision again", func(r string) bool { return r == first })
	var rev rikv1alpha1.WorkloadRevision
	if err := c.client.Get(t.Context(), types.NamespacedName{Namespace: c.namespace, Name: first}, &rev); err != nil || rev.Revision != 3 {
		t.Errorf("the old revision has number %d (%v), want 3", rev.Revision, err)
	}
	c.eventually("the status settles", func() string {
		w := c.workload("web")
		if p := meta.FindStatusCondition(w.Status.Conditions, rikv1alpha1.WorkloadProgressing); p == nil || p.Reason != "Complete" {
			return fmt.Sprintf("%+v", w.Status)
		}
		return ""
	})
	c.settled()
}

// manual creates a Manual workload and instances of it, as a user does.
func (c *cluster) manual(name string, instances int) {
	c.Helper()
	w := automatic(c.namespace, name, 1)
	w.Spec.Deploy = rikv1alpha1.DeployManual
	c.create(w)
	for range instances {
		c.create(&rikv1alpha1.Instance{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, GenerateName: name + "-"},
			Spec:       rikv1alpha1.InstanceSpec{Workload: name},
		})
	}
}

// TestCascadeFault01: deleting a workload ends its instances, including Manual ones. It does
// not end any part of the controller.
func TestCascadeFault01(t *testing.T) {
	c := start(t, nil, "node-a")
	c.manual("hand", 3)
	c.create(automatic(c.namespace, "auto", 2))
	c.wantRunning("hand", 3)
	c.wantRunning("auto", 2)
	for _, name := range []string{"hand", "auto"} {
		if err := c.client.Delete(t.Context(), c.workload(name)); err != nil {
			t.Fatal(err)
		}
	}
	c.eventually("everything is gone", func() string {
		var revisions rikv1alpha1.WorkloadRevisionList
		if err := c.client.List(t.Context(), &revisions, client.InNamespace(c.namespace)); err != nil {
			return err.Error()
		}
		if n := len(c.instances()) + len(revisions.Items); n > 0 {
			return fmt.Sprintf("%d instances and revisions left: %s", n, describe(c.instances()))
		}
		return ""
	})
	c.scheduler.do(func() {
		if len(c.scheduler.running) > 0 {
			t.Errorf("nodes still run %v", c.scheduler.running)
		}
	})
	// The controller still works.
	c.create(automatic(c.namespace, "auto", 1))
	c.wantRunning("auto", 1)
}

// TestCascadePolicies: orphans stay and keep running. With Foreground the workload is deleted
// last.
func TestCascadePolicies(t *testing.T) {
	c := start(t, nil, "node-a")
	c.manual("orphans", 2)
	c.manual("front", 2)
	c.wantRunning("orphans", 2)
	c.wantRunning("front", 2)
	orphan, foreground := metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground
	if err := c.client.Delete(t.Context(), c.workload("orphans"), &client.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Delete(t.Context(), c.workload("front"), &client.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	c.eventually("both workloads are gone", func() string {
		var list rikv1alpha1.WorkloadList
		if err := c.client.List(t.Context(), &list, client.InNamespace(c.namespace)); err != nil {
			return err.Error()
		}
		if len(list.Items) > 0 {
			return list.Items[0].Name + " is left"
		}
		return ""
	})
	for _, in := range c.instances() {
		if in.Spec.Workload == "front" {
			t.Errorf("%s outlived its workload", in.Name)
		}
	}
	for _, in := range c.wantRunning("orphans", 2) {
		if len(in.OwnerReferences) > 0 {
			t.Errorf("%s still has an owner", in.Name)
		}
	}
}

// TestCascadeContinuesWithANewController: a new controller applies the propagation policy of a
// deletion that it did not see, although the garbage collector of Kubernetes has already
// removed the finalizer.
func TestCascadeContinuesWithANewController(t *testing.T) {
	c := start(t, nil, "node-a")
	c.manual("kept", 2)
	c.wantRunning("kept", 2)
	c.stop()
	orphan := metav1.DeletePropagationOrphan
	if err := c.client.Delete(t.Context(), c.workload("kept"), &client.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the garbage collector has done its part", func() string {
		if w := c.workload("kept"); slices.Contains(w.Finalizers, metav1.FinalizerOrphanDependents) {
			return fmt.Sprintf("finalizers %q", w.Finalizers)
		}
		return ""
	})
	c.run()
	c.eventually("the workload is gone", func() string {
		var list rikv1alpha1.WorkloadList
		if err := c.client.List(t.Context(), &list, client.InNamespace(c.namespace)); err != nil {
			return err.Error()
		}
		if len(list.Items) > 0 {
			return fmt.Sprintf("it has the finalizers %q", list.Items[0].Finalizers)
		}
		return ""
	})
	for _, in := range c.wantRunning("kept", 2) {
		if len(in.OwnerReferences) > 0 || in.DeletionTimestamp != nil {
			t.Errorf("%s has owners %v and is deleted at %v, want an orphan", in.Name, in.OwnerReferences, in.DeletionTimestamp)
		}
	}
}
