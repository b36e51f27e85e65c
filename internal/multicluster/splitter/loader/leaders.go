package loader

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// leaders are the objects that a root follows to their clusters.
type leaders struct {
	refs []splitter.Reference
	// named are the roots to which the root refers.
	named []Related
	// roots are the roots that it follows. places are the clusters of other objects that it
	// follows. places is nil if it follows no other objects.
	roots  []Related
	places []string
}

// leaders finds what the root follows. These are the roots to which it refers or which it
// selects. A root that makes a Secret or a ConfigMap follows the objects that need this Secret or
// ConfigMap instead. A root that exists for the objects that refer to it ([splitter.Serves])
// follows these. They follow it only if they follow nothing else.
func (w *RootState) leaders(ctx context.Context, source Source) (leaders, error) {
	l, related, serving, err := w.primary(ctx, source)
	if err != nil || !splitter.Follows(w.Root, w.Type.Scalable) {
		return l, err
	}
	if len(l.roots)+len(l.places) == 0 {
		l.roots = serving
	}
	pulling, err := w.pulling(ctx, source, related)
	l.roots = append(l.roots, pulling...)
	return l, err
}

// primary returns the leaders without the roots that serve this root, and without the roots that
// this root serves. It also returns all related roots, and the roots that serve this one.
func (w *RootState) primary(ctx context.Context, source Source) (l leaders, related, serving []Related, err error) {
	l.refs = splitter.References(w.Root)
	products := w.Type.Rules.Products(w.Root)
	q := Query{
		Refs: l.refs, Needs: products,
		Pods: w.Type.Rules.Selector(w.Root, splitter.KindPod), Services: w.Type.Rules.Selector(w.Root, splitter.KindService),
	}
	follows := splitter.Follows(w.Root, w.Type.Scalable)
	if follows {
		q.Referred, q.ByAny = w.Root.GetName(), splitter.Serves(w.Type.GVK.GroupKind())
	}
	if related, err = w.related(ctx, source, q); err != nil {
		return l, nil, nil, err
	}
	var users, others []Related
	for _, r := range related {
		isNamed := slices.ContainsFunc(l.refs, func(ref splitter.Reference) bool { return isTo(ref, r) })
		if isNamed {
			l.named = append(l.named, r)
		}
		switch {
		case len(products) > 0 && needsOne(r, q):
			users = append(users, r)
		case isNamed && splitter.Serves(r.Type.GVK.GroupKind()):
			serving = append(serving, r)
		case isNamed, q.Pods != nil && selects(q.Pods, r.Root):
			others = append(others, r)
		}
	}
	l.roots = others
	if !follows {
		return l, related, serving, nil
	}
	places, err := w.places(ctx, source, Query{Needs: products})
	if err == nil && len(users)+len(places) > 0 {
		l.roots, l.places = users, places
		return l, related, serving, nil
	}
	if err == nil {
		l.places, err = w.servicePlaces(ctx, source, l.refs, q)
	}
	return l, related, serving, err
}

// needsOne reports whether a root needs one of the objects of a query.
func needsOne(r Related, q Query) bool {
	needs, err := r.Type.Needs(r.Root)
	return err == nil && q.IsNeeded(needs)
}

// pulling returns the related roots that refer to this root and do not follow it. Something else
// determines their clusters, and this root must be in the same clusters.
func (w *RootState) pulling(ctx context.Context, source Source, related []Related) ([]Related, error) {
	var out []Related
	own := Related{w.Root, w.Type}
	serves := splitter.Serves(w.Type.GVK.GroupKind())
	for _, r := range related {
		refers := func(ref splitter.Reference) bool { return isTo(ref, own) }
		if !serves && len(r.Type.Rules.Products(r.Root)) == 0 || !slices.ContainsFunc(splitter.References(r.Root), refers) {
			continue
		}
		is := serves && !splitter.Follows(r.Root, r.Type.Scalable)
		if !is {
			l, _, _, err := (&RootState{Root: r.Root, Type: r.Type}).primary(ctx, source)
			if err != nil {
				return nil, err
			}
			isSelf := func(to Related) bool { return keyOf(to.Root, to.Type) == keyOf(w.Root, w.Type) }
			is = len(l.places) > 0 || slices.ContainsFunc(l.roots, func(to Related) bool { return !isSelf(to) })
		}
		if is {
			out = append(out, r)
		}
	}
	return out, nil
}

// places returns the target clusters of the undivided objects of a query.
func (w *RootState) places(ctx context.Context, source Source, q Query) ([]string, error) {
	if q.Services == nil && len(q.Needs) == 0 {
		return nil, nil
	}
	places, err := source.Places(ctx, w.Root.GetNamespace(), q)
	if err != nil {
		return nil, fmt.Errorf("reading what %s follows: %w", w.Root.GetName(), err)
	}
	return places, nil
}

// servicePlaces returns the target clusters of the Services that the root selects or, like an
// Ingress, refers to. The result is not nil if such a Service exists.
func (w *RootState) servicePlaces(ctx context.Context, source Source, refs []splitter.Reference, q Query) ([]string, error) {
	places, err := w.places(ctx, source, Query{Services: q.Services})
	if err != nil {
		return nil, err
	}
	for _, ref := range refs {
		if ref.Kind != splitter.KindService || ref.Known && ref.Group != "" {
			continue
		}
		service, err := source.Object(ctx, corev1.SchemeGroupVersion.WithKind(splitter.KindService), w.Root.GetNamespace(), ref.Name)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("reading the service %s: %w", ref.Name, err)
		default:
			places = append(append([]string{}, places...), workloadv1alpha1.Targets(service.GetLabels())...)
		}
	}
	return places, nil
}
