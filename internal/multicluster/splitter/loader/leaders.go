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

// leaders are what a root goes after.
type leaders struct {
	refs []splitter.Reference
	// named are the roots that the root refers to.
	named []Related
	// roots are those that it goes after, and places where other objects are that it goes after;
	// nil if there are no such objects.
	roots  []Related
	places []string
}

// leaders finds what the root goes after. That is what it refers to or selects; but what makes a
// Secret or a ConfigMap that others need goes after these. What exists for others that refer to it
// ([splitter.Serves]) goes after them, and they after it only if they go after nothing else.
func (w *World) leaders(ctx context.Context, source Source) (leaders, error) {
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

// primary are the leaders without what serves the root and without what the root serves. It gives
// all that is related, and what serves the root, as well.
func (w *World) primary(ctx context.Context, source Source) (l leaders, related, serving []Related, err error) {
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

// needsOne reports whether a root needs one of the objects that are asked for.
func needsOne(r Related, q Query) bool {
	needs, err := r.Type.Needs(r.Root)
	return err == nil && q.IsNeeded(needs)
}

// pulling are those of other roots that refer to this one, and that do not go after it: they are
// where something else has them be, and what they refer to has to be there too.
func (w *World) pulling(ctx context.Context, source Source, related []Related) ([]Related, error) {
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
			l, _, _, err := (&World{Root: r.Root, Type: r.Type}).primary(ctx, source)
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

// places are where the objects are sent that one asks for and that are not divided.
func (w *World) places(ctx context.Context, source Source, q Query) ([]string, error) {
	if q.Services == nil && len(q.Needs) == 0 {
		return nil, nil
	}
	places, err := source.Places(ctx, w.Root.GetNamespace(), q)
	if err != nil {
		return nil, fmt.Errorf("reading what %s goes after: %w", w.Root.GetName(), err)
	}
	return places, nil
}

// servicePlaces are where the Services are that the root names, as an Ingress does, or selects. It
// is not nil if the root names one that is there, or selects any.
func (w *World) servicePlaces(ctx context.Context, source Source, refs []splitter.Reference, q Query) ([]string, error) {
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
