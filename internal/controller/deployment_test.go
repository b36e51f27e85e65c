package controller_test

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func deploymentIn(namespace, name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/web:1"}}},
			},
		},
	}
}

// rolledOut waits like kubectl rollout status until the given number of replicas run the
// current template.
func (c *cluster) rolledOut(name string, replicas int32) *appsv1.Deployment {
	c.Helper()
	var d appsv1.Deployment
	c.eventually("the status of deployment "+name, func() string {
		if err := c.client.Get(c.Context(), types.NamespacedName{Namespace: c.namespace, Name: name}, &d); err != nil {
			return err.Error()
		}
		s := d.Status
		if s.ObservedGeneration == d.Generation && s.Replicas == replicas && s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas {
			return ""
		}
		return fmt.Sprintf("generation %d: %+v", d.Generation, s)
	})
	return &d
}

// TestDeploymentRuns follows a Deployment from its creation to its deletion. Changes to the
// objects that it created are reverted. A pass over a converged Deployment writes nothing.
func TestDeploymentRuns(t *testing.T) {
	c := start(t, nil, "node-a", "node-b")
	key := types.NamespacedName{Namespace: c.namespace, Name: "shop"}
	c.create(deploymentIn(c.namespace, "shop", 3))
	for _, in := range c.wantRunning("shop", 3) {
		if in.Labels["app"] != "shop" {
			t.Errorf("labels of %s: %v, want those of the template", in.Name, in.Labels)
		}
	}
	c.rolledOut("shop", 3)
	change(c, key, &rikv1alpha1.Workload{}, func(w *rikv1alpha1.Workload) {
		many := int32(9)
		w.Spec.Replicas, w.Spec.Containers[0].Image = &many, "registry.example/other:1"
	})
	c.eventually("the workload is as the deployment asks", func() string {
		if w := c.workload("shop"); *w.Spec.Replicas != 3 || w.Spec.Containers[0].Image != "registry.example/web:1" {
			return fmt.Sprintf("%d of %s", *w.Spec.Replicas, w.Spec.Containers[0].Image)
		}
		return ""
	})
	change(c, key, &appsv1.Deployment{}, func(d *appsv1.Deployment) {
		five := int32(5)
		d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Image = &five, "registry.example/web:2"
	})
	before := c.rolledOut("shop", 5)
	c.wantRunning("shop", 5)
	workload := c.workload("shop")
	c.settled()
	if after := c.rolledOut("shop", 5); after.ResourceVersion != before.ResourceVersion {
		t.Error("a second look wrote the status of the deployment")
	}
	if again := c.workload("shop"); again.Generation != workload.Generation {
		t.Error("a second look wrote the workload")
	}
}

// TestDeploymentEnds: a Deployment deleted in the foreground is removed after its instances,
// although the garbage collector does not see them.
func TestDeploymentEnds(t *testing.T) {
	c := start(t, nil, "node-a")
	key := types.NamespacedName{Namespace: c.namespace, Name: "shop"}
	c.create(deploymentIn(c.namespace, "shop", 2))
	c.wantRunning("shop", 2)
	d := c.rolledOut("shop", 2)
	foreground := metav1.DeletePropagationForeground
	if err := c.client.Delete(t.Context(), d, &client.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the deployment is gone", func() string {
		// Read the list first: instances do not return.
		left := len(c.instances())
		err := c.client.Get(t.Context(), key, d)
		switch {
		case apierrors.IsNotFound(err) && left > 0 && len(c.instances()) > 0:
			t.Fatal("the deployment went before its instances")
		case err == nil:
			return fmt.Sprintf("it is there, with finalizers %v", d.Finalizers)
		case !apierrors.IsNotFound(err):
			return err.Error()
		}
		return ""
	})
	if left := c.instances(); len(left) > 0 {
		t.Errorf("left: %s", describe(left))
	}
}

// TestDeploymentAdoptsOrphan: a Deployment that is created again adopts the objects that the
// earlier one was deleted without. The instances keep running.
func TestDeploymentAdoptsOrphan(t *testing.T) {
	c := start(t, nil, "node-a")
	c.create(deploymentIn(c.namespace, "shop", 2))
	before := c.wantRunning("shop", 2)
	d := c.rolledOut("shop", 2)
	orphan := metav1.DeletePropagationOrphan
	if err := c.client.Delete(t.Context(), d, &client.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the workload has no owner", func() string {
		if refs := c.workload("shop").OwnerReferences; len(refs) > 0 {
			return fmt.Sprint(refs)
		}
		err := c.client.Get(t.Context(), types.NamespacedName{Namespace: c.namespace, Name: "shop"}, d)
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the deployment is there (%v)", err)
		}
		return ""
	})
	c.create(deploymentIn(c.namespace, "shop", 3))
	again := c.rolledOut("shop", 3)
	if w := c.workload("shop"); !metav1.IsControlledBy(w, again) || w.DeletionTimestamp != nil {
		t.Errorf("the workload has the owners %v and is deleted at %v", w.OwnerReferences, w.DeletionTimestamp)
	}
	kept := map[types.UID]bool{}
	for _, in := range c.wantRunning("shop", 3) {
		kept[in.UID] = true
	}
	for _, in := range before {
		if !kept[in.UID] {
			t.Errorf("instance %s of the earlier deployment is gone", in.Name)
		}
	}
}

// TestWorkloadOfADeploymentRefusesRollback: a Workload of a Deployment refuses a rollback by itself
// and names the Deployment as its owner.
func TestWorkloadOfADeploymentRefusesRollback(t *testing.T) {
	c := start(t, nil, "node-a")
	key := types.NamespacedName{Namespace: c.namespace, Name: "shop"}
	c.create(deploymentIn(c.namespace, "shop", 1))
	c.rolledOut("shop", 1)
	change(c, key, &appsv1.Deployment{}, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Image = "registry.example/web:2"
	})
	c.rolledOut("shop", 1)
	revision := c.workload("shop").Status.CurrentRevision
	change(c, key, &rikv1alpha1.Workload{}, func(w *rikv1alpha1.Workload) {
		metav1.SetMetaDataAnnotation(&w.ObjectMeta, rikv1alpha1.AnnotationRollback, "1")
	})
	c.eventually("an event says why not", func() string {
		var list eventsv1.EventList
		if err := c.client.List(c.Context(), &list, client.InNamespace(c.namespace)); err != nil {
			return err.Error()
		}
		for i := range list.Items {
			if list.Items[i].Reason == "RollbackRefused" && strings.Contains(list.Items[i].Note, "Deployment shop controls this workload") {
				return ""
			}
		}
		return fmt.Sprintf("%d events, none of them that", len(list.Items))
	})
	// The event is written first.
	c.eventually("the wish is gone", func() string { return c.workload("shop").Annotations[rikv1alpha1.AnnotationRollback] })
	if w := c.workload("shop"); w.Status.CurrentRevision != revision {
		t.Errorf("the workload went from revision %s to %s", revision, w.Status.CurrentRevision)
	}
}
