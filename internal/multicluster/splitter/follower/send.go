package follower

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/multicluster/splitter/patch"
	"rik.dev/rik/internal/reconcile"
)

// heldAgain is the interval at which a held follower is checked again.
const heldAgain = 2 * time.Second

// reconcile sends a follower to the clusters where it is needed, and removes it from those where
// it is no longer needed.
func (f *Followers) reconcile(ctx context.Context, k key.Follower) (time.Duration, error) {
	object := f.Get(k)
	if object == nil || object.GetDeletionTimestamp() != nil {
		f.memory.gone(k)
		return 0, nil
	}
	wanted, again := f.wanted(k, object)
	if err := f.send(ctx, object, wanted); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("%w: %w", reconcile.ErrAgain, err)
		}
		return 0, fmt.Errorf("sending %s to where it is needed: %w", k, err)
	}
	return again, nil
}

// wanted returns the demand for a follower, with the clusters in which it stays for another reason.
// It also returns when to check again.
func (f *Followers) wanted(k key.Follower, object *Object) (Demand, time.Duration) {
	now := f.config.Now()
	wanted := f.demand(k, object)
	// A follower that was sent before its leaf stays until the leaf is in the cache.
	awaited, again := f.memory.awaited(k, wanted.Clusters, now)
	if awaited = intersection(object.leaving(wanted.Clusters), awaited); len(awaited) > 0 {
		wanted.add(awaited, object.neededBy())
	}
	// It also stays where replicas of an earlier spec run, because these may start again.
	if rolling := f.rolling(object, object.leaving(wanted.Clusters)); len(rolling) > 0 {
		wanted.add(rolling, object.neededBy())
		again = reconcile.Soonest(again, heldAgain)
	}
	leaving := object.leaving(wanted.Clusters)
	switch {
	case len(leaving) == 0:
		f.memory.left(k)
	case f.isHeld(object):
		wanted.add(leaving, nil)
		// After a start, the types are still being read. A leaf that was deleted in the meantime
		// does not cause another pass.
		again = reconcile.Soonest(again, heldAgain)
	default:
		if delay := f.memory.leaves(k, now, f.config.ReleaseDelay); delay > 0 {
			wanted.add(leaving, nil)
			again = reconcile.Soonest(again, delay)
		}
	}
	wanted.add(nil, f.unseenTypes(object))
	return wanted, again
}

func intersection(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(name string) bool { return !slices.Contains(b, name) })
}

// send writes the targets of a follower if they have changed.
func (f *Followers) send(ctx context.Context, object *Object, d Demand) error {
	objects := f.of(object.GetKind())
	if objects == nil {
		return nil // the type was just removed
	}
	resource := objects.resource.GroupResource()
	untaken := f.untaken(object, resource, d.Clusters)
	clusters := slices.DeleteFunc(d.Clusters, func(name string) bool { return slices.Contains(untaken, name) })
	slices.Sort(clusters)
	next := object.DeepCopy()
	changed := splitter.Follow(next, slices.Compact(clusters))
	notes := maps.Clone(next.GetAnnotations())
	if notes == nil {
		notes = map[string]string{}
	}
	changed = noteNotSynced(notes, resource, untaken) || changed
	slices.Sort(d.Types)
	needed := strings.Join(slices.Compact(d.Types), ",")
	if notes[workloadv1alpha1.FollowsAnnotation] == "" {
		needed = ""
	}
	if !changed && needed == notes[neededByAnnotation] {
		return nil
	}
	if delete(notes, neededByAnnotation); needed != "" {
		notes[neededByAnnotation] = needed
	}
	data, err := patch.Body(object, map[string]any{
		"labels": patch.Difference(object.GetLabels(), next.GetLabels()), "annotations": patch.Difference(object.GetAnnotations(), notes),
	}, nil)
	if err != nil {
		return err
	}
	_, err = f.config.Metadata.Resource(objects.resource).Namespace(object.GetNamespace()).
		Patch(ctx, object.GetName(), types.MergePatchType, data, metav1.PatchOptions{FieldManager: f.config.FieldManager})
	if err == nil {
		f.config.Sent()
	}
	return err
}

// untaken returns the clusters to which a follower is not sent yet and whose syncers do not copy
// its type. The follower would never arrive there, and no syncer would report that.
func (f *Followers) untaken(object *Object, resource schema.GroupResource, clusters []string) []string {
	var names []string
	targets := workloadv1alpha1.Targets(object.GetLabels())
	for _, name := range clusters {
		if !slices.Contains(targets, name) && !slices.Contains(names, name) && !f.config.Leaves.Takes(name, resource) {
			names = append(names, name)
		}
	}
	return names
}

// notSyncedReason is the start of the problem annotation for a follower that a cluster needs, but
// whose type its syncer does not copy.
const notSyncedReason = "TypeNotSynced"

// isNotSynced reports whether noteNotSynced wrote an annotation.
func isNotSynced(name, text string) bool {
	return strings.HasPrefix(name, workloadv1alpha1.ProblemAnnotationPrefix) && strings.HasPrefix(text, notSyncedReason+":")
}

// noteNotSynced sets an annotation for each cluster that needs the follower but whose syncer does
// not copy it. It removes annotations that are no longer true. It reports whether it changed
// anything.
func noteNotSynced(notes map[string]string, resource schema.GroupResource, untaken []string) (changed bool) {
	before := len(notes)
	maps.DeleteFunc(notes, func(name, text string) bool {
		return isNotSynced(name, text) && !slices.Contains(untaken, strings.TrimPrefix(name, workloadv1alpha1.ProblemAnnotationPrefix))
	})
	changed = len(notes) != before
	text := fmt.Sprintf("%s: a workload in the cluster needs this object, and the cluster's syncer does not copy %s now; \"kubectl get apiresourceimports\" shows why", notSyncedReason, resource)
	for _, name := range untaken {
		if note := workloadv1alpha1.ProblemAnnotationPrefix + name; notes[note] != text {
			notes[note] = text
			changed = true
		}
	}
	return changed
}

// Precede sends the followers that a leaf will need to its cluster, before the leaf is created.
func (f *Followers) Precede(ctx context.Context, t loader.Type, leaf *unstructured.Unstructured, cluster string) error {
	needs, err := t.Needs(leaf)
	if err != nil {
		return err
	}
	keys := f.neededBy(leaf.GetNamespace(), needs, splitter.PodLabels(leaf))
	seen := map[key.Follower]bool{}
	for len(keys) > 0 {
		k := keys[0]
		keys = keys[1:]
		object := f.Get(k)
		if object == nil || seen[k] {
			continue // an object that is created later is sent then
		}
		seen[k] = true
		if !slices.Contains(f.demand(k, object).Clusters, cluster) {
			f.memory.await(k, cluster, f.config.Now())
		}
		keys = append(keys, key.OfNeeds(k.Namespace, object.Needs)...)
		if slices.Contains(workloadv1alpha1.Targets(object.GetLabels()), cluster) {
			continue
		}
		var d Demand
		d.add(workloadv1alpha1.Follows(object.GetAnnotations()), object.neededBy())
		d.add([]string{cluster}, []string{t.GroupResource().String()})
		if err := f.send(ctx, object, d); err != nil {
			return fmt.Errorf("sending %s to %s: %w", k, cluster, err)
		}
	}
	return nil
}
