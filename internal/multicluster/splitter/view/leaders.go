package view

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
// Secret or a ConfigMap that others need goes after these, and what such a one refers to after it.
func (w *World) leaders(ctx context.Context, source Source) (leaders, error) {
	l := leaders{refs: splitter.References(w.Root)}
	products := w.Type.Rules.Products(w.Root)
	q := Query{
		Refs: l.refs, Needs: products,
		Pods: w.Type.Rules.Selector(w.Root, splitter.KindPod), Services: w.Type.Rules.Selector(w.Root, splitter.KindService),
	}
	follows := splitter.Follows(w.Root, w.Type.Scalable)
	if follows {
		q.Referred = w.Root.GetName()
	}
	related, err := w.related(ctx, source, q)
	if err != nil {
		return l, err
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
		case isNamed, q.Pods != nil && selects(q.Pods, r.Root):
			others = append(others, r)
		}
	}
	if !follows {
		l.roots = others
		return l, nil
	}
	if l.places, err = w.places(ctx, source, Query{Needs: products}); err != nil {
		return l, err
	}
	if l.roots = users; len(users) > 0 || len(l.places) > 0 {
		return l, nil
	}
	l.roots = others
	if l.places, err = w.servicePlaces(ctx, source, l.refs, q); err != nil {
		return l, err
	}
	pulling, err := w.pulling(ctx, source, related)
	l.roots = append(l.roots, pulling...)
	return l, err
}

// needsOne reports whether a root needs one of the objects that are asked for.
func needsOne(r Related, q Query) bool {
	needs, err := r.Type.Needs(r.Root)
	return err == nil && q.IsNeeded(needs)
}

// pulling are those of other roots that refer to this one and make something that is needed: they
// are where that is needed, and what they refer to has to be there too.
func (w *World) pulling(ctx context.Context, source Source, related []Related) ([]Related, error) {
	var out []Related
	own := Related{w.Root, w.Type}
	for _, r := range related {
		refers := func(ref splitter.Reference) bool { return isTo(ref, own) }
		products := r.Type.Rules.Products(r.Root)
		if len(products) == 0 || !slices.ContainsFunc(splitter.References(r.Root), refers) {
			continue
		}
		at := &World{Root: r.Root, Type: r.Type}
		q := Query{Needs: products}
		users, err := at.related(ctx, source, q)
		if err != nil {
			return nil, err
		}
		places, err := at.places(ctx, source, q)
		if err != nil {
			return nil, err
		}
		if len(places) > 0 || slices.ContainsFunc(users, func(user Related) bool { return needsOne(user, q) }) {
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
