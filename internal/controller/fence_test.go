package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// kcpOf is the syncer of a kcp to which the cluster's namespace belongs.
type kcpOf struct {
	*cluster
	lease *coordinationv1.Lease
}

// belongTo makes the cluster's namespace belong to a Cluster upstream, with a Lease.
func belongTo(c *cluster, uid string) *kcpOf {
	c.Helper()
	ctx := context.Background()
	locator, err := json.Marshal(workloadv1alpha1.Locator{UpstreamUID: "kcp", Cluster: "east", ClusterUID: uid, Namespace: "team"})
	if err != nil {
		c.Fatal(err)
	}
	own := &corev1.Namespace{}
	if err := c.client.Get(ctx, client.ObjectKey{Name: c.namespace}, own); err != nil {
		c.Fatal(err)
	}
	before := own.DeepCopy()
	own.Annotations = map[string]string{workloadv1alpha1.LocatorAnnotation: string(locator)}
	if err := c.client.Patch(ctx, own, client.MergeFrom(before)); err != nil {
		c.Fatal(err)
	}
	home := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workloadv1alpha1.FenceNamespace}}
	if err := c.client.Create(ctx, home); err != nil && !apierrors.IsAlreadyExists(err) {
		c.Fatal(err)
	}
	k := &kcpOf{cluster: c, lease: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: workloadv1alpha1.FenceNamespace, Name: workloadv1alpha1.FenceLeaseName(uid),
	}}}
	if err := c.client.Create(ctx, k.lease); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		if err := c.client.Delete(ctx, k.lease); err != nil {
			c.Errorf("removing the lease: %v", err)
		}
	})
	return k
}

// answer writes the current challenge back as the proof. It returns false if that was done
// before.
func (k *kcpOf) answer() bool {
	k.Helper()
	ctx := context.Background()
	if err := k.client.Get(ctx, client.ObjectKeyFromObject(k.lease), k.lease); err != nil {
		k.Fatal(err)
	}
	challenge := k.lease.Annotations[workloadv1alpha1.FenceChallengeAnnotation]
	if challenge == "" || challenge == k.lease.Annotations[workloadv1alpha1.FenceAnswerAnnotation] {
		return false
	}
	before := k.lease.DeepCopy()
	k.lease.Annotations[workloadv1alpha1.FenceAnswerAnnotation] = challenge
	if err := k.client.Patch(ctx, k.lease, client.MergeFrom(before)); err != nil {
		k.Fatal(err)
	}
	return true
}

// running waits for the given number of running instances. If inTouch is set, it answers the
// challenges.
func (k *kcpOf) running(n int, inTouch, fenced bool) {
	k.Helper()
	k.eventually(fmt.Sprintf("%d instances run", n), func() string {
		if inTouch {
			k.answer()
		}
		w := k.workload("web")
		if *w.Spec.Replicas != 2 {
			k.Fatalf("spec.replicas is %d", *w.Spec.Replicas)
		}
		if is := meta.IsStatusConditionTrue(w.Status.Conditions, "Fenced"); is != fenced {
			return fmt.Sprintf("the condition Fenced is %v", is)
		}
		if got := len(k.instances()); got != n {
			return fmt.Sprintf("there are %d", got)
		}
		return ""
	})
}

// TestFenceFollowsTheLease: fenced instances are stopped when no challenge is answered, and
// start again when one is. This also holds if the controller restarts in between.
func TestFenceFollowsTheLease(t *testing.T) {
	c := start(t, nil, "node-1")
	k := belongTo(c, "uid-"+c.namespace)
	w := automatic(c.namespace, "web", 2)
	w.Annotations = map[string]string{workloadv1alpha1.FenceAfterAnnotation: "10s"}
	c.create(w)
	free := automatic(c.namespace, "free", 1)
	c.create(free)

	k.eventually("the other workload runs", func() string {
		if got := len(k.instances()); got != 1 {
			return fmt.Sprintf("there are %d instances", got)
		}
		return ""
	})
	k.running(1, false, true)
	k.running(3, true, false)
	k.eventually("a challenge follows an answer", func() string {
		if !k.answer() {
			return "there is none"
		}
		return ""
	})
	k.running(1, false, true) // at most 5 s after the last answer
	c.stop()
	c.run()
	k.running(1, false, true)
	k.running(3, true, false)
}
