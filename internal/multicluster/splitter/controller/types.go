package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter/cache"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// keepTypes starts the caches of types that are divided and served, and stops the others. Objects
// of a type that is no longer served stay as they were.
func (c *Controller) keepTypes(ctx context.Context, _ struct{}) (time.Duration, error) {
	crds := cache.List[apiextensionsv1.CustomResourceDefinition](c.crds)
	wanted := map[schema.GroupResource]loader.Type{}
	for _, t := range loader.Types(crds, cache.List[apiresourcev1alpha1.NegotiatedAPIResource](c.negotiated)) {
		if c.config.divides(t) {
			wanted[t.GroupResource()] = t
		}
	}
	c.followers.ServeIngresses(ctx, slices.ContainsFunc(crds, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd.Spec.Group == loader.Ingresses.Group && crd.Spec.Names.Plural == loader.Ingresses.Resource && loader.IsServed(crd)
	}))
	c.dropTypes(wanted)
	var problems []error
	for _, resource := range slices.SortedFunc(maps.Keys(wanted), func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) }) {
		if err := c.addType(ctx, wanted[resource]); err != nil {
			problems = append(problems, fmt.Errorf("watching %s: %w", resource, err))
		}
	}
	c.mu.Lock()
	c.typesKnown = true
	c.mu.Unlock()
	return 0, errors.Join(problems...)
}

// dropTypes stops the caches of types that are not wanted any more, or whose definition has
// changed.
func (c *Controller) dropTypes(wanted map[schema.GroupResource]loader.Type) {
	c.mu.Lock()
	var stopped []*kind
	for resource, k := range c.kinds {
		if t, ok := wanted[resource]; !ok || !sameType(t, k.Type) {
			stopped = append(stopped, k)
			delete(c.kinds, resource)
		}
	}
	c.mu.Unlock()
	for _, k := range stopped {
		k.Stop()
		c.metrics.forgetType(k.GroupResource())
		c.config.Logger.Info("no longer dividing a type", "resource", k.GroupResource().String())
	}
}

func sameType(a, b loader.Type) bool {
	return a.GVK == b.GVK && a.Resource == b.Resource && a.Scalable == b.Scalable && a.Reports == b.Reports && reflect.DeepEqual(a.Rules, b.Rules) &&
		slices.Equal(a.Path.Spec, b.Path.Spec) && slices.Equal(a.Path.Status, b.Path.Status)
}

// addType starts the cache of a type, if it does not run.
func (c *Controller) addType(ctx context.Context, t loader.Type) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds[t.GroupResource()] != nil {
		return nil
	}
	k, err := newKind(c.dynamic, t, c.config.Logger)
	if err != nil {
		return err
	}
	if _, err := k.AddEventHandler(cache.Changes(func(before, now *entry) { c.entryChanged(k, before, now) })); err != nil {
		return err
	}
	c.kinds[t.GroupResource()] = k
	k.Start(ctx)
	if t.BadRules != "" {
		c.config.Logger.Warn("annotations of a CRD are not understood", "resource", t.GroupResource().String(), "err", t.BadRules)
	}
	c.config.Logger.Info("dividing a type", "resource", t.GroupResource().String(), "version", t.GVK.Version, "divide", string(t.Division()))
	return nil
}

// stopTypes stops the caches of all types.
func (c *Controller) stopTypes() {
	c.mu.Lock()
	kinds := c.kinds
	c.kinds = map[schema.GroupResource]*kind{}
	c.mu.Unlock()
	for _, k := range kinds {
		k.Stop()
	}
	c.followers.StopIngresses()
}

// entryChanged queues what a change of an object of a type affects. before is nil for a new
// object, and now is nil for a deleted one.
func (c *Controller) entryChanged(k *kind, before, now *entry) {
	r := cmp.Or(now, before)
	owners := k.rootsOf(r)
	if before != nil && before != r {
		// The object may have been a leaf of another root.
		for _, root := range k.rootsOf(before) {
			c.roots.Add(root)
		}
	}
	for _, root := range owners {
		if now == nil {
			k.written.gone(key.Name(root.Namespace, root.Name), r.GetName(), r.GetUID())
		}
		c.roots.Add(root)
	}
	if isMoved(before, now) {
		c.moved(k, owners, before, now)
	}
	c.leafChanged(before, now)
}

// moved queues what depends on the clusters or the content of roots. before and now are the
// object of their families that has changed.
func (c *Controller) moved(k *kind, roots []rootKey, before, now *entry) {
	kinds, _ := c.filledKinds()
	for _, root := range roots {
		// A root that selected the pods before the change may not select them now.
		c.referrersOf(kinds, root.Namespace, root.Name, before, now)
		versions := []*entry{before, now}
		if present := k.get(root.Namespace, root.Name); present != now {
			versions = append(versions, present)
		}
		for _, r := range versions {
			c.usedChanged(kinds, r)
		}
		c.followers.CheckBackend(k.GVK.GroupKind(), root.Namespace, root.Name)
	}
}

// isMoved reports whether a change of a root affects the roots that refer to it: the clusters of
// its leaves, or its content.
func isMoved(before, now *entry) bool {
	return before == nil || now == nil || before.role != now.role || before.digest != now.digest ||
		(before.GetDeletionTimestamp() == nil) != (now.GetDeletionTimestamp() == nil) ||
		before.GetGeneration() != now.GetGeneration() || !maps.Equal(before.GetAnnotations(), now.GetAnnotations())
}

// referrersOf queues the roots that refer to a name or that select the pods of one of the entries.
// An entry may be nil.
func (c *Controller) referrersOf(kinds []*kind, namespace, name string, entries ...*entry) {
	var pods []labels.Labels
	for _, r := range entries {
		if r != nil {
			pods = append(pods, r.pods...)
		}
	}
	for _, k := range kinds {
		c.addRoots(k, k.find(referenceIndex, key.Name(namespace, name))...)
		if len(pods) == 0 {
			continue
		}
		for _, about := range k.find(aboutIndex, namespace) {
			if about.selector != nil && slices.ContainsFunc(pods, about.selector.Matches) {
				c.addRoots(k, about)
			}
		}
	}
}

// usedChanged queues the roots that make the objects which a root needs, and the roots to which
// it refers. r may be nil.
func (c *Controller) usedChanged(kinds []*kind, r *entry) {
	if r == nil || r.role != loader.Root {
		return
	}
	c.producersOf(kinds, r.GetNamespace(), r.needs)
	c.referredBy(kinds, r)
}

// leafChanged queues the objects that a leaf needs or needed before.
func (c *Controller) leafChanged(before, now *entry) {
	if before != nil && now != nil && sameNeeds(before, now) {
		return
	}
	for _, r := range []*entry{before, now} {
		if r == nil || r.role != loader.Leaf {
			continue
		}
		c.followers.CheckNeeds(r.GetNamespace(), r.needs, r.pods)
		if now == nil {
			for _, name := range clusterKeys(r) {
				c.removals.Add(name)
			}
		}
	}
}
