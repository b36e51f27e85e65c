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

// relateDepth bounds chains of references, such as a route to a gateway to a certificate to an
// issuer. What is further away is taken to be everywhere.
const relateDepth = 8

// relate finds what the root refers to, and in which clusters it is to be. Leaves refer to the
// leaves of their own cluster. A root that follows ([splitter.Follows]) goes where its leaders are.
func (w *World) relate(ctx context.Context, source Source, depth int) error {
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

// related are the roots that one asks for, in a stable order, without the root itself.
func (w *World) related(ctx context.Context, source Source, q Query) ([]Related, error) {
	if q.isEmpty() {
		return nil, nil
	}
	all, err := source.Related(ctx, w.Root.GetNamespace(), q)
	if err != nil {
		return nil, fmt.Errorf("reading what %s refers to: %w", w.Root.GetName(), err)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(r Related) bool {
		return RoleOf(r.Root, r.Type) != Root || r.Root.GetDeletionTimestamp() != nil || keyOf(r.Root, r.Type) == keyOf(w.Root, w.Type)
	})
	slices.SortFunc(all, func(a, b Related) int { return cmp.Compare(keyOf(a.Root, a.Type), keyOf(b.Root, b.Type)) })
	return slices.CompactFunc(all, func(a, b Related) bool { return keyOf(a.Root, a.Type) == keyOf(b.Root, b.Type) }), nil
}

// keyOf names a root of a namespace.
func keyOf(root *unstructured.Unstructured, t Type) string {
	return t.GroupResource().String() + "/" + root.GetName()
}

// name notes which references are to a root.
func (w *World) name(ctx context.Context, source Source, r Related, refs []splitter.Reference) error {
	other, err := readAlone(ctx, source, r.Root, r.Type, w.State.Now)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		if !isTo(ref, r) {
			continue
		}
		if w.named == nil {
			w.named = map[splitter.Reference]*World{}
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

// follow has the root go where another one is, and counts the shares of what makes pods.
func (w *World) follow(ctx context.Context, source Source, r Related, follows bool, depth int) error {
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

// leads reports whether the root goes before another one that it goes after and that goes after it,
// also by way of others. Of a circle the first by its key leads.
func (w *World) leads(ctx context.Context, source Source, other *World) (bool, error) {
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
		l, err := (&World{Root: r.Root, Type: r.Type}).leaders(ctx, source)
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

// reread reads the leaves again, for the way in which the root is divided has changed.
func (w *World) reread(ctx context.Context, source Source) error {
	w.State.Leaves, w.Leaves = nil, nil
	return w.readLeaves(ctx, source)
}

// IsAdapted reports whether leaves differ by their clusters, replicas apart.
func (w *World) IsAdapted() bool {
	return len(w.named) > 0 || len(w.shares) > 0 && splitter.HasPortions(w.Type.GVK.GroupKind())
}

// Adapt makes of a leaf what is right in its cluster: what it refers to has the name that it has there, and numbers that are about a whole workload are its portion. It changes the leaf.
func (w *World) Adapt(leaf *unstructured.Unstructured, cluster string) {
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
