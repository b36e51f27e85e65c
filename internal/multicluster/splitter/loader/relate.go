package loader

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// relateDepth limits chains of references, such as from a route to a Gateway to a Certificate to
// an Issuer. An object that is further away counts as being in every cluster.
const relateDepth = 8

// relate finds the objects to which the root refers, and the clusters in which they will be.
// Leaves refer to the leaves in their own cluster. A root that follows ([splitter.Follows]) goes
// to the clusters of its leaders.
func (w *RootState) relate(ctx context.Context, source Source, depth int) error {
	if len(w.Problems) > 0 {
		return nil
	}
	l, err := w.leaders(ctx, source)
	if err != nil {
		return err
	}
	for _, r := range l.named {
		if err := w.name(ctx, source, r, l.refs); err != nil {
			return err
		}
	}
	follows := !w.chosen && splitter.Follows(w.Root, w.Type.Scalable)
	if depth > 0 && (follows || splitter.HasPortions(w.Type.GVK.GroupKind())) {
		for _, r := range l.roots {
			if err := w.follow(ctx, source, r, follows, depth); err != nil {
				return err
			}
		}
	}
	if follows && l.places != nil {
		w.State.Follows = true
		w.State.Among = append(w.State.Among, l.places...)
	}
	if w.State.Follows {
		slices.Sort(w.State.Among)
		w.State.Among = slices.Compact(w.State.Among)
		w.State.Policy = w.State.Policy.Everywhere()
		w.Division = workloadv1alpha1.DivideEverywhere
		return w.reread(ctx, source)
	}
	return nil
}

// related returns the roots that match a query, in a stable order and without the root itself.
func (w *RootState) related(ctx context.Context, source Source, q Query) ([]Related, error) {
	if q.isEmpty() {
		return nil, nil
	}
	all, err := source.Related(ctx, w.Root.GetNamespace(), q)
	if err != nil {
		return nil, fmt.Errorf("reading the references of %s: %w", w.Root.GetName(), err)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(r Related) bool {
		return RoleOf(r.Root, r.Type) != Root || r.Root.GetDeletionTimestamp() != nil || keyOf(r.Root, r.Type) == keyOf(w.Root, w.Type)
	})
	slices.SortFunc(all, func(a, b Related) int { return cmp.Compare(keyOf(a.Root, a.Type), keyOf(b.Root, b.Type)) })
	return slices.CompactFunc(all, func(a, b Related) bool { return keyOf(a.Root, a.Type) == keyOf(b.Root, b.Type) }), nil
}

// keyOf returns a key that identifies a root in its namespace.
func keyOf(root *unstructured.Unstructured, t Type) string {
	return t.GroupResource().String() + "/" + root.GetName()
}

// name records which of the references are to a root.
func (w *RootState) name(ctx context.Context, source Source, r Related, refs []splitter.Reference) error {
	other, err := readAlone(ctx, source, r.Root, r.Type, w.State.Now)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		if !isTo(ref, r) {
			continue
		}
		if w.named == nil {
			w.named = map[splitter.Reference]*RootState{}
		}
		w.named[ref] = other
	}
	return nil
}

// isTo reports whether a reference is to a root.
func isTo(ref splitter.Reference, r Related) bool {
	return ref.Name == r.Root.GetName() && ref.Is(r.Type.GVK.GroupKind())
}

func selects(pods labels.Selector, root *unstructured.Unstructured) bool {
	return slices.ContainsFunc(splitter.PodLabels(root), pods.Matches)
}

// follow adds the clusters of another root to those that this root follows. It also adds the
// shares of that root.
func (w *RootState) follow(ctx context.Context, source Source, r Related, follows bool, depth int) error {
	other, err := readAlone(ctx, source, r.Root, r.Type, w.State.Now)
	if err != nil {
		return err
	}
	leads, err := w.leads(ctx, source, other)
	if err != nil || leads {
		return err
	}
	if err := other.relate(ctx, source, depth-1); err != nil {
		return err
	}
	w.State.Follows = w.State.Follows || follows
	among := map[string]bool{}
	for i := range other.State.Leaves {
		if l := &other.State.Leaves[i]; !l.Deleting {
			among[l.Cluster] = true
		}
	}
	if len(other.Problems) == 0 {
		for _, share := range splitter.Split(other.State).Explanation.Clusters {
			if share.Share == 0 {
				continue
			}
			among[share.Cluster] = true
			if w.shares == nil {
				w.shares = map[string]int64{}
			}
			w.shares[share.Cluster] += int64(share.Share)
		}
	}
	for name := range among {
		w.State.Among = append(w.State.Among, name)
	}
	return nil
}

// leads reports whether two roots follow each other, directly or through other roots, and this
// root is the one that leads. In a cycle, the root with the first key leads.
func (w *RootState) leads(ctx context.Context, source Source, other *RootState) (bool, error) {
	own := keyOf(w.Root, w.Type)
	if keyOf(other.Root, other.Type) < own {
		return false, nil
	}
	seen := map[string]bool{}
	next := []Related{{other.Root, other.Type}}
	for len(next) > 0 && len(seen) < 64 {
		r := next[0]
		next = next[1:]
		if seen[keyOf(r.Root, r.Type)] {
			continue
		}
		seen[keyOf(r.Root, r.Type)] = true
		if !splitter.Follows(r.Root, r.Type.Scalable) {
			continue
		}
		l, err := (&RootState{Root: r.Root, Type: r.Type}).leaders(ctx, source)
		if err != nil {
			return false, err
		}
		for _, to := range l.roots {
			if keyOf(to.Root, to.Type) == own {
				return true, nil
			}
			next = append(next, to)
		}
	}
	return false, nil
}

// reread reads the leaves again after the division of the root has changed.
func (w *RootState) reread(ctx context.Context, source Source) error {
	w.State.Leaves, w.Leaves = nil, nil
	return w.readLeaves(ctx, source)
}

// IsAdapted reports whether the leaves differ between clusters in more than their replicas.
func (w *RootState) IsAdapted() bool {
	return len(w.named) > 0 || len(w.shares) > 0 && splitter.HasPortions(w.Type.GVK.GroupKind())
}

// Adapt changes a leaf for its cluster. References get the name that the object has in that
// cluster. Numbers about a whole workload become the portion of the cluster.
func (w *RootState) Adapt(leaf *unstructured.Unstructured, cluster string) {
	if len(w.named) > 0 {
		splitter.Retarget(leaf, func(r splitter.Reference) (string, bool) {
			other, ok := w.named[r]
			if !ok {
				return "", false
			}
			return other.NameIn(cluster), true
		})
	}
	if len(w.shares) > 0 {
		splitter.Portion(leaf, cluster, w.shares)
	}
}
