package controller

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/follower"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// newFollowers creates the followers of the kcp.
func (c *Controller) newFollowers() (*follower.Followers, error) {
	return follower.New(follower.Config{
		Dynamic: c.dynamic, Metadata: c.metadata, Leaves: leaves{c}, Changed: c.followerChanged,
		Sent: func() { c.metrics.follows.Inc() }, FieldManager: fieldManager,
		Workers: c.config.Workers, ReleaseDelay: c.config.ReleaseDelay, Logger: c.config.Logger, Now: c.now,
	})
}

// leaves answers the questions of followers from the caches.
type leaves struct{ c *Controller }

var _ follower.Leaves = leaves{}

// Needing implements follower.Leaves. A leaf that was announced while its type was being read is
// not announced again, so these types count too.
func (l leaves) Needing(needed key.Follower, selector map[string]string) []follower.Demand {
	var demands []follower.Demand
	for _, k := range l.c.seenKinds() {
		found := k.find(needIndex, needed.String())
		if len(selector) > 0 {
			found = append(found, k.selected(needed.Namespace, selector)...)
		}
		if len(found) == 0 {
			continue
		}
		d := follower.Demand{Types: []string{k.GroupResource().String()}}
		for _, leaf := range found {
			d.Clusters = append(d.Clusters, workloadv1alpha1.Targets(leaf.GetLabels())...)
		}
		demands = append(demands, d)
	}
	return demands
}

// selected returns the leaves to whose pods a Service with a selector sends traffic. A pod that
// matches has every label in the selector, so one label is enough to find it.
func (k *kind) selected(namespace string, selector map[string]string) []*entry {
	matches := labels.SelectorFromSet(selector).Matches
	for name, value := range selector {
		return slices.DeleteFunc(k.find(podIndex, key.Pod(namespace, name, value)), func(leaf *entry) bool {
			return leaf.role != loader.Leaf || !slices.ContainsFunc(leaf.pods, matches)
		})
	}
	return nil
}

// Behind implements follower.Leaves.
func (l leaves) Behind(namespace string, backend splitter.Reference) []string {
	var clusters []string
	kinds, _ := l.c.filledKinds()
	for _, k := range kinds {
		if !backend.Is(k.GVK.GroupKind()) {
			continue
		}
		_, family := k.family(namespace, backend.Name)
		for _, leaf := range family {
			if owner, _ := loader.Owner(leaf, k.Type); owner == backend.Name && leaf.GetDeletionTimestamp() == nil {
				clusters = append(clusters, workloadv1alpha1.Targets(leaf.GetLabels())...)
			}
		}
	}
	return clusters
}

// IsRolling implements follower.Leaves.
func (l leaves) IsRolling(namespace, cluster string, types []string) bool {
	kinds, _ := l.c.filledKinds()
	return slices.ContainsFunc(kinds, func(k *kind) bool {
		return slices.Contains(types, k.GroupResource().String()) && slices.ContainsFunc(k.find(placeIndex, key.Name(namespace, cluster)), k.isRolling)
	})
}

// isRolling reports whether a leaf does not run its current spec yet.
func (k *kind) isRolling(r *entry) bool {
	leaf := splitter.ReadLeaf(r.Unstructured, k.Path, k.Division())
	done, _ := progressed(r, &leaf, k.Type)
	return !done && !leaf.Deleting
}

// Read implements follower.Leaves.
func (l leaves) Read() (types []string, all bool) {
	kinds, all := l.c.filledKinds()
	for _, k := range kinds {
		types = append(types, k.GroupResource().String())
	}
	return types, all
}

// Takes implements follower.Leaves. A Cluster without a status may still accept everything.
func (l leaves) Takes(cluster string, resource schema.GroupResource) bool {
	registered := l.c.clusterNamed(cluster)
	if registered == nil {
		return true
	}
	synced := registered.Status.SyncedResources
	return len(synced) == 0 || slices.Contains(synced, resource.String())
}

// followerChanged queues what the change of a follower affects: the clusters in which it is or
// was, and roots.
func (c *Controller) followerChanged(before, now *follower.Object) {
	var versions []*follower.Object
	for _, f := range []*follower.Object{before, now} {
		if f != nil {
			versions = append(versions, f)
		}
	}
	changed, needs := versions[0].Key(), []splitter.Need{}
	for _, f := range versions {
		for _, need := range f.Needs {
			if need.Optional = false; !slices.Contains(needs, need) {
				needs = append(needs, need)
			}
		}
		for _, name := range f.Clusters() {
			c.removals.Add(name)
		}
	}
	kinds, _ := c.filledKinds()
	c.producersOf(kinds, changed.Namespace, needs)
	switch changed.Kind {
	case splitter.KindClaim:
		c.rootsNaming(kinds, changed)
	case splitter.KindService:
		c.referrersOf(kinds, changed.Namespace, changed.Name)
		c.selectorsOf(kinds, versions)
	}
}

// selectorsOf queues the roots that select one of the versions of a Service.
func (c *Controller) selectorsOf(kinds []*kind, versions []*follower.Object) {
	for _, k := range kinds {
		for _, root := range k.find(aboutIndex, versions[0].GetNamespace()) {
			selects := func(f *follower.Object) bool { return root.services.Matches(f.Labels) }
			if root.services != nil && slices.ContainsFunc(versions, selects) {
				c.addRoots(k, root)
			}
		}
	}
}

// producersOf queues the roots that produce a needed object, and the roots to which these refer.
func (c *Controller) producersOf(kinds []*kind, namespace string, needs []splitter.Need) {
	for _, need := range key.Needs(namespace, needs) {
		for _, k := range kinds {
			for _, root := range k.find(productIndex, need) {
				c.addRoots(k, root)
				c.referredBy(kinds, root)
			}
		}
	}
}

// referredBy queues the roots to which another root refers.
func (c *Controller) referredBy(kinds []*kind, root *entry) {
	for _, k := range kinds {
		for _, ref := range root.refs {
			if to := k.get(root.GetNamespace(), ref.Name); to != nil && to.role == loader.Root && ref.Is(k.GVK.GroupKind()) {
				c.addRoots(k, to)
			}
		}
	}
}

// rootsNaming queues the roots whose leaves need an object.
func (c *Controller) rootsNaming(kinds []*kind, needed key.Follower) {
	for _, k := range kinds {
		for _, leaf := range k.find(needIndex, needed.String()) {
			for _, root := range k.rootsOf(leaf) {
				c.roots.Add(root)
			}
		}
	}
}
