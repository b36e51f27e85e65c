package controller_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestRollout tests that a new spec goes from cluster to cluster, and stops when it fails.
func TestRollout(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	s.deploy("web", 4, nil)
	s.images("web", "east=web:v1 west=web:v1")
	s.reports("web", map[string]int64{"updatedReplicas": 4})
	s.image("web", "v2")
	s.images("web", "east=web:v2 west=web:v2")
	s.reports("web", map[string]int64{"updatedReplicas": 4})
	s.broken["east"] = true
	s.image("web", "broken")
	s.images("web", "east=web:broken west=web:v2")
	s.says("web", "Progressing", "False", "ProgressDeadlineExceeded")
	s.reported("web", "RolloutPaused", "the other clusters keep the previous spec")
	s.rests("web")
	s.images("web", "east=web:broken west=web:v2")
	// West still runs the earlier spec, so its updated replicas have that spec.
	if n, _, err := unstructured.NestedInt64(s.get(s.resource, "web").Object, "status", "updatedReplicas"); n != 0 || err != nil {
		t.Errorf("updatedReplicas is %d while no cluster runs the new spec, want 0 (%v)", n, err)
	}
	s.broken["east"] = false
	s.image("web", "v3")
	s.images("web", "east=web:v3 west=web:v3")
	s.reports("web", map[string]int64{"updatedReplicas": 4})
}

// TestRolloutWithASurge tests that a rollout is not done while old replicas are among the ready
// ones. The old ones may start again, so the objects that they need stay.
func TestRolloutWithASurge(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	reads := func(settings, version string) map[string]any {
		out := template("web", version)
		container := out["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
		container["envFrom"] = []any{map[string]any{"configMapRef": map[string]any{"name": settings}}}
		return map[string]any{"spec": map[string]any{"template": out}}
	}
	for _, name := range []string{"old", "new"} {
		s.create(core.WithResource("configmaps"), object(core.WithResource("configmaps"), "ConfigMap", s.namespace, name))
	}
	d := object(s.resource, s.kind, s.namespace, "web")
	d.Object["spec"] = map[string]any{"replicas": int64(2), "template": reads("old", "v1")["spec"].(map[string]any)["template"]}
	s.create(s.resource, d)
	s.reports("web", map[string]int64{"updatedReplicas": 2})
	s.sent("ConfigMap", "old", "east,west")
	s.surging["east"] = true
	s.change("web", reads("new", "v2"))
	s.images("web", "east=web:v2 west=web:v1")
	s.sent("ConfigMap", "new", "east")
	s.rests("web")
	s.images("web", "east=web:v2 west=web:v1")
	s.sent("ConfigMap", "old", "east,west")
	s.surging["east"] = false
	s.images("web", "east=web:v2 west=web:v2")
	s.sent("ConfigMap", "new", "east,west")
	s.sent("ConfigMap", "old", "")
}

// TestStatusThatDoesNotFit tests that a number which does not fit in the status of the root does not
// block the reports of other clusters.
func TestStatusThatDoesNotFit(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	s.deploy("web", 4, nil)
	s.reports("web", map[string]int64{"readyReplicas": 4})
	s.cut("east")
	s.merge(s.resource, s.namespace, s.leaf("web", "east"), map[string]any{"status": map[string]any{"replicas": math.MaxInt32, "readyReplicas": 2}}, "status")
	s.broken["west"] = true
	s.reports("web", map[string]int64{"replicas": math.MaxInt32, "readyReplicas": 2})
	s.says("web", "Available", "False", "MinimumReplicasUnavailable")
	s.rests("web")
}

// TestManualChangesOfALeaf tests that the controller reverts manual changes of a leaf, except for fields
// that a leaf may have of its own.
func TestManualChangesOfALeaf(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	s.deploy("web", 4, map[string]string{"team": "shop", "other": "x"})
	s.until("web", "east=2 west=2")
	east := s.leaf("web", "east")
	before := s.get(s.resource, east)
	for what, patch := range map[string]map[string]any{
		"spec":     {"spec": map[string]any{"paused": true, "template": template("web", "mine")}},
		"replicas": {"spec": map[string]any{"replicas": 9}},
		"labels":   {"metadata": map[string]any{"labels": map[string]any{"mine": "x", workloadv1alpha1.OwnedByLabel: nil}}},
		"metadata": {"metadata": map[string]any{"annotations": map[string]any{"team": "mine", "own": "stays"}, "ownerReferences": []any{}}},
		"target":   {"metadata": map[string]any{"labels": map[string]any{workloadv1alpha1.ClusterLabel: "elsewhere"}}},
	} {
		s.change(east, patch)
		s.eventually("the "+what+" of the leaf is as it was", func(ctx context.Context) error {
			now, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, east, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return sameLeaf(before, now)
		})
	}
	if s.get(s.resource, east).GetAnnotations()["own"] != "stays" {
		t.Error("an annotation that the root does not have is gone from the leaf")
	}
	s.hint("web", map[string]any{"other": nil})
	s.eventually("the leaf loses what the root loses", func(ctx context.Context) error {
		if _, ok := s.get(s.resource, east).GetAnnotations()["other"]; ok {
			return errors.New("it has the annotation")
		}
		return nil
	})
	s.remove(east)
	s.eventually("the leaf comes back", func(ctx context.Context) error {
		now, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, east, metav1.GetOptions{})
		if err == nil && now.GetUID() == before.GetUID() {
			err = errors.New("it is the one before")
		}
		return err
	})
	s.until("web", "east=2 west=2")
}

// TestNameTaken tests that the controller does not turn another object into a leaf.
func TestNameTaken(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east")
	taken := object(s.resource, s.kind, s.namespace, s.leaf("web", "east"))
	taken.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: "elsewhere"})
	taken.Object["spec"] = map[string]any{"replicas": int64(1)}
	s.create(s.resource, taken)
	s.deploy("web", 4, nil)
	s.reported("web", "LeafRefused", "another object has the name of the leaf")
	if now := s.get(s.resource, taken.GetName()); len(now.GetOwnerReferences()) > 0 || now.GetLabels()[workloadv1alpha1.ClusterLabel] != "elsewhere" {
		t.Errorf("the object was changed: %v", now.Object["metadata"])
	}
}

// TestRootEnds tests that the leaves of a root are deleted when the root is deleted, and when it
// gets a target label of its own.
func TestRootEnds(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	s.deploy("deleted", 4, nil)
	s.deploy("labeled", 4, nil)
	s.until("deleted", "east=2 west=2")
	s.until("labeled", "east=2 west=2")
	s.remove("deleted")
	s.change("labeled", map[string]any{"metadata": map[string]any{"labels": map[string]any{workloadv1alpha1.ClusterLabel: s.cluster("east")}}})
	s.eventually("only what has a label is left", func(ctx context.Context) error {
		objects, err := s.objects.Resource(s.resource).Namespace(s.namespace).List(ctx, metav1.ListOptions{})
		if err == nil && (len(objects.Items) != 1 || objects.Items[0].GetName() != "labeled") {
			err = fmt.Errorf("there are %d objects", len(objects.Items))
		}
		return err
	})
	s.change("labeled", map[string]any{"metadata": map[string]any{"labels": map[string]any{workloadv1alpha1.ClusterLabel: nil}}})
	s.until("labeled", "east=2 west=2")
}

// TestClusterRemoved tests that removing a Cluster leaves its objects as they are, unless the
// user asked to delete them.
func TestClusterRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west", "north")
	s.deploy("web", 6, nil)
	s.until("web", "east=2 north=2 west=2")
	// The Cluster has the finalizer of its controller. Its syncer's finalizers are removed.
	s.merge(clusters, "", s.cluster("east"), map[string]any{"metadata": map[string]any{"finalizers": []any{workloadv1alpha1.ClusterFinalizer}}})
	s.unregister("east")
	s.cut("east")
	s.until("web", "east=2 north=3 west=3")
	s.change(s.leaf("web", "east"), map[string]any{"metadata": map[string]any{"finalizers": nil}})
	s.merge(clusters, "", s.cluster("east"), map[string]any{"metadata": map[string]any{"finalizers": nil}})
	s.until("web", "north=3 west=3")

	s.merge(clusters, "", s.cluster("north"), map[string]any{"metadata": map[string]any{"annotations": map[string]any{workloadv1alpha1.OnRemovalAnnotation: workloadv1alpha1.OnRemovalDelete}}})
	s.eventually("the Cluster is held", func(ctx context.Context) error {
		c, err := s.objects.Resource(clusters).Get(ctx, s.cluster("north"), metav1.GetOptions{})
		if err == nil && !slices.Contains(c.GetFinalizers(), workloadv1alpha1.SplitterFinalizer) {
			err = fmt.Errorf("its finalizers are %v", c.GetFinalizers())
		}
		return err
	})
	s.unregister("north")
	s.until("web", "west=6")
	s.eventually("the Cluster is released when its leaf is gone", func(ctx context.Context) error {
		_, err := s.objects.Resource(clusters).Get(ctx, s.cluster("north"), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}

// TestMarksOfTools tests that a tool which searches for its own label finds the root, but no
// leaf. For example, kubectl apply --prune --applyset deletes every object that it finds but did
// not apply.
func TestMarksOfTools(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	const mark = "applyset.kubernetes.io/part-of"
	s.deploy("web", 4, map[string]string{"meta.helm.sh/release-name": "shop", "team": "shop"})
	s.merge(s.resource, s.namespace, "web", map[string]any{"metadata": map[string]any{"labels": map[string]any{mark: "shop", "tier": "front"}}})
	s.until("web", "east=2 west=2")
	s.eventually("the leaves have the label of the root", func(ctx context.Context) error {
		found, err := s.objects.Resource(s.resource).Namespace(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "tier=front"})
		if err != nil || len(found.Items) != 3 {
			return fmt.Errorf("%d objects have it: %w", len(found.Items), err)
		}
		return nil
	})
	found, err := s.objects.Resource(s.resource).Namespace(s.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: mark})
	if err != nil || len(found.Items) != 1 || found.Items[0].GetName() != "web" {
		t.Errorf("objects with the label of an ApplySet: %v, %v", found, err)
	}
	if notes := s.get(s.resource, s.leaf("web", "east")).GetAnnotations(); notes["team"] != "shop" || notes["meta.helm.sh/release-name"] != "" {
		t.Errorf("the leaf has the annotations %v", notes)
	}
}
