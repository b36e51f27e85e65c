package controller

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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/reconcile"
)

// neededByAnnotation on a follower lists the types of the leaves that need it. While one of these
// types is not served, the follower stays where it is, because missing leaves prove nothing then.
const neededByAnnotation = "splitter.workloads.kcp.dev/needed-by"

// heldAgain is the interval at which a held object is checked again.
const heldAgain = 2 * time.Second

// demand is the clusters and types that need an object.
type demand struct {
	clusters []string
	// types are the types of the leaves that need the object.
	types []string
}

// follow sends an object to the clusters where it is needed, and removes it from those where it
// is no longer needed.
func (c *Controller) follow(ctx context.Context, key needKey) (time.Duration, error) {
	f := c.follower(key)
	if f == nil || f.GetDeletionTimestamp() != nil {
		c.memory.gone(key)
		return 0, nil
	}
	wanted := c.demand(key, f)
	// An object that was sent before its leaf stays until the leaf is in the cache.
	awaited, again := c.memory.awaited(key, wanted.clusters, c.now())
	if awaited = intersection(leavingOf(f, wanted.clusters), awaited); len(awaited) > 0 {
		wanted.clusters = append(wanted.clusters, awaited...)
		wanted.types = append(wanted.types, typesIn(f)...)
	}
	// It also stays where replicas of an earlier spec run, because these may start again.
	if behind := c.rolling(f, leavingOf(f, wanted.clusters)); len(behind) > 0 {
		wanted.clusters = append(wanted.clusters, behind...)
		wanted.types = append(wanted.types, typesIn(f)...)
		again = reconcile.Soonest(again, heldAgain)
	}
	leaving := leavingOf(f, wanted.clusters)
	switch {
	case len(leaving) == 0:
		c.memory.left(key)
	case c.isHeld(f):
		wanted.clusters = append(wanted.clusters, leaving...)
		// After a start, the types are still being read. A leaf that was deleted in the meantime
		// does not cause another pass.
		again = reconcile.Soonest(again, heldAgain)
	default:
		if delay := c.memory.leaves(key, c.now(), c.config.ReleaseDelay); delay > 0 {
			wanted.clusters = append(wanted.clusters, leaving...)
			again = reconcile.Soonest(again, delay)
		}
	}
	wanted.types = append(wanted.types, c.unseenTypes(f)...)
	if err := c.send(ctx, f, wanted); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("%w: %w", reconcile.ErrAgain, err)
		}
		return 0, fmt.Errorf("sending %s to where it is needed: %w", key, err)
	}
	return again, nil
}

// leavingOf returns the clusters to which an object was sent and where nothing needs it.
func leavingOf(f *follower, wanted []string) []string {
	var leaving []string
	for _, name := range workloadv1alpha1.Follows(f.GetAnnotations()) {
		if !slices.Contains(wanted, name) {
			leaving = append(leaving, name)
		}
	}
	return leaving
}

// rolling returns the clusters in which a leaf does not run its current spec yet. It checks the
// types that needed the object. The needs of the earlier spec are no longer known.
func (c *Controller) rolling(f *follower, clusters []string) []string {
	kinds, _ := c.filledKinds()
	types := typesIn(f)
	return slices.DeleteFunc(clusters, func(cluster string) bool {
		return !slices.ContainsFunc(kinds, func(k *kind) bool {
			return slices.Contains(types, k.GroupResource().String()) && slices.ContainsFunc(k.find(placeIndex, nameKey(f.GetNamespace(), cluster)), k.isRolling)
		})
	})
}

// isRolling reports whether a leaf does not run its current spec yet.
func (k *kind) isRolling(r *entry) bool {
	leaf := splitter.ReadLeaf(r.Unstructured, k.Path, k.Division())
	done, _ := progressed(r, &leaf, k.Type)
	return !done && !leaf.Deleting
}

func intersection(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(name string) bool { return !slices.Contains(b, name) })
}

// demand returns where an object is needed.
func (c *Controller) demand(key needKey, f *follower) demand {
	if key.Kind == ingressKind {
		return demand{clusters: c.behind(f)}
	}
	var d demand
	// A leaf that was announced while its type was being read is not announced again.
	for _, k := range c.seenKinds() {
		leaves := k.find(needIndex, key.String())
		if len(f.selector) > 0 {
			leaves = append(leaves, selected(k, f)...)
		}
		for _, leaf := range leaves {
			d.clusters = append(d.clusters, workloadv1alpha1.Targets(leaf.GetLabels())...)
		}
		if len(leaves) > 0 {
			d.types = append(d.types, k.GroupResource().String())
		}
	}
	for _, other := range c.followersOf(splitter.KindServiceAccount).find(needIndex, key.String()) {
		d.clusters = append(d.clusters, workloadv1alpha1.Follows(other.GetAnnotations())...)
		d.types = append(d.types, typesIn(other)...)
	}
	for _, ingress := range c.followersOf(ingressKind).find(needIndex, key.String()) {
		if follows := workloadv1alpha1.Follows(ingress.GetAnnotations()); len(follows) > 0 && key.Kind != splitter.KindService {
			d.clusters = append(d.clusters, follows...)
			d.types = append(d.types, loader.Ingresses.String())
		}
	}
	return d
}

// behind returns the clusters that have one of the Services of an Ingress.
func (c *Controller) behind(ingress *follower) []string {
	targets := map[splitter.Need][]string{}
	for _, need := range ingress.needs {
		if need.Kind != splitter.KindService {
			continue
		}
		need.Optional = false
		if s := c.follower(keyOfNeed(ingress.GetNamespace(), need)); s != nil {
			targets[need] = workloadv1alpha1.Targets(s.GetLabels())
		}
	}
	return append(splitter.Followers(ingress.needs, targets), c.resourcesBehind(ingress)...)
}

// resourcesBehind returns the clusters with leaves of the roots that are backends of an Ingress.
// Services are not included.
func (c *Controller) resourcesBehind(ingress *follower) []string {
	var clusters []string
	kinds, _ := c.filledKinds()
	for _, ref := range ingress.refs {
		for _, k := range kinds {
			if !ref.Is(k.GVK.GroupKind()) {
				continue
			}
			_, leaves := k.family(ingress.GetNamespace(), ref.Name)
			for _, leaf := range leaves {
				if owner, _ := loader.Owner(leaf, k.Type); owner == ref.Name && leaf.GetDeletionTimestamp() == nil {
					clusters = append(clusters, workloadv1alpha1.Targets(leaf.GetLabels())...)
				}
			}
		}
	}
	return clusters
}

// leavesOf queues the Ingresses that have a root as a backend, after the leaves of that root
// changed.
func (c *Controller) leavesOf(k *kind, key rootKey) {
	for _, f := range c.followersOf(ingressKind).find(referenceIndex, nameKey(key.Namespace, key.Name)) {
		if slices.ContainsFunc(f.refs, func(ref splitter.Reference) bool { return ref.Name == key.Name && ref.Is(k.GVK.GroupKind()) }) {
			c.follows.Add(f.key())
		}
	}
}

// selected returns the leaves to whose pods a Service sends traffic.
func selected(k *kind, service *follower) []*entry {
	var leaves []*entry
	selector := labels.SelectorFromSet(service.selector)
	for _, key := range selectorKeys(service) {
		for _, leaf := range k.find(podIndex, key) {
			if leaf.role == loader.Leaf && slices.ContainsFunc(leaf.pods, selector.Matches) {
				leaves = append(leaves, leaf)
			}
		}
	}
	return leaves
}

// typesIn returns the types in [neededByAnnotation] of an object.
func typesIn(f *follower) []string {
	if list := f.GetAnnotations()[neededByAnnotation]; list != "" {
		return strings.Split(list, ",")
	}
	return nil
}

// isHeld reports whether there may be leaves that need an object but are not in the cache.
func (c *Controller) isHeld(f *follower) bool {
	_, all := c.filledKinds()
	return !all || len(c.unseenTypes(f)) > 0
}

// unseenTypes returns the types in [neededByAnnotation] of an object whose leaves are not in the
// cache.
func (c *Controller) unseenTypes(f *follower) []string {
	kinds, _ := c.filledKinds()
	ingresses := c.followersOf(ingressKind)
	return slices.DeleteFunc(typesIn(f), func(name string) bool {
		if name == loader.Ingresses.String() {
			return ingresses != nil && ingresses.informer.HasSynced()
		}
		return slices.ContainsFunc(kinds, func(k *kind) bool { return k.GroupResource().String() == name })
	})
}

// notSyncedReason is the start of the problem annotation for an object that a cluster needs, but
// whose type its syncer does not copy.
const notSyncedReason = "TypeNotSynced"

// untaken returns the clusters to which the object is not sent yet and whose syncer does not copy
// its type. The object would never arrive there, and no syncer would report that.
func (c *Controller) untaken(f *follower, resource schema.GroupResource, clusters []string) []string {
	var names []string
	targets := workloadv1alpha1.Targets(f.GetLabels())
	for _, name := range clusters {
		cluster := c.clusterNamed(name)
		if cluster == nil || slices.Contains(targets, name) || slices.Contains(names, name) {
			continue
		}
		// A Cluster without a status may still accept everything.
		if synced := cluster.Status.SyncedResources; len(synced) > 0 && !slices.Contains(synced, resource.String()) {
			names = append(names, name)
		}
	}
	return names
}

// isUntakenNote reports whether an annotation was written by noteUntaken.
func isUntakenNote(key, text string) bool {
	return strings.HasPrefix(key, workloadv1alpha1.ProblemAnnotationPrefix) && strings.HasPrefix(text, notSyncedReason+":")
}

// noteUntaken sets an annotation for each cluster that needs the object but whose syncer does not
// copy it. It removes annotations that are no longer true. It reports whether it changed
// anything.
func noteUntaken(notes map[string]string, resource schema.GroupResource, untaken []string) (changed bool) {
	for key, text := range notes {
		name := strings.TrimPrefix(key, workloadv1alpha1.ProblemAnnotationPrefix)
		if isUntakenNote(key, text) && !slices.Contains(untaken, name) {
			delete(notes, key)
			changed = true
		}
	}
	for _, name := range untaken {
		text := fmt.Sprintf("%s: a workload in the cluster needs this object, and the cluster does not take %s at present; \"kubectl get apiresourceimports\" says why", notSyncedReason, resource)
		if key := workloadv1alpha1.ProblemAnnotationPrefix + name; notes[key] != text {
			notes[key] = text
			changed = true
		}
	}
	return changed
}

// send writes the targets of an object if they have changed.
func (c *Controller) send(ctx context.Context, f *follower, d demand) error {
	resource := c.followersOf(f.GetKind())
	if resource == nil {
		return nil // the type was just removed
	}
	untaken := c.untaken(f, resource.resource.GroupResource(), d.clusters)
	d.clusters = slices.DeleteFunc(d.clusters, func(name string) bool { return slices.Contains(untaken, name) })
	slices.Sort(d.clusters)
	next := f.DeepCopy()
	changed := splitter.Follow(next, slices.Compact(d.clusters))
	slices.Sort(d.types)
	notes := maps.Clone(next.GetAnnotations())
	if notes == nil {
		notes = map[string]string{}
	}
	changed = noteUntaken(notes, resource.resource.GroupResource(), untaken) || changed
	needed := strings.Join(slices.Compact(d.types), ",")
	if notes[workloadv1alpha1.FollowsAnnotation] == "" {
		needed = ""
	}
	if changed = changed || needed != notes[neededByAnnotation]; !changed {
		return nil
	}
	if delete(notes, neededByAnnotation); needed != "" {
		notes[neededByAnnotation] = needed
	}
	patch, err := body(f, map[string]any{
		"labels": difference(f.GetLabels(), next.GetLabels()), "annotations": difference(f.GetAnnotations(), notes),
	}, nil)
	if err != nil {
		return err
	}
	_, err = c.metadata.Resource(resource.resource).Namespace(f.GetNamespace()).
		Patch(ctx, f.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err == nil {
		c.metrics.follows.Inc()
	}
	return err
}

// difference returns the merge patch that changes one map into another.
func difference(before, after map[string]string) map[string]any {
	out := map[string]any{}
	for name, value := range after {
		if old, ok := before[name]; !ok || old != value {
			out[name] = value
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			out[name] = nil
		}
	}
	return out
}

// precede sends the objects that a leaf will need to its cluster before the leaf is created.
func (c *Controller) precede(ctx context.Context, t loader.Type, leaf *unstructured.Unstructured, cluster string) error {
	needs, err := t.Needs(leaf)
	if err != nil {
		return err
	}
	keys := append(c.servicesOf(leaf.GetNamespace(), splitter.PodLabels(leaf)), keysOfNeeds(leaf.GetNamespace(), needs)...)
	seen := map[needKey]bool{}
	for len(keys) > 0 {
		key := keys[0]
		keys = keys[1:]
		f := c.follower(key)
		if f == nil || seen[key] {
			continue // an object that is created later is sent then
		}
		seen[key] = true
		if !slices.Contains(c.demand(key, f).clusters, cluster) {
			c.memory.await(key, cluster, c.now())
		}
		keys = append(keys, keysOfNeeds(key.Namespace, f.needs)...)
		if slices.Contains(workloadv1alpha1.Targets(f.GetLabels()), cluster) {
			continue
		}
		d := demand{
			clusters: append(workloadv1alpha1.Follows(f.GetAnnotations()), cluster),
			types:    append(typesIn(f), t.GroupResource().String()),
		}
		if err := c.send(ctx, f, d); err != nil {
			return fmt.Errorf("sending %s to %s: %w", key, cluster, err)
		}
	}
	return nil
}
