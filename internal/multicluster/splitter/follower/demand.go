package follower

import (
	"slices"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// demand returns where a follower is needed.
func (f *Followers) demand(k key.Follower, object *Object) Demand {
	var d Demand
	if k.Kind == KindIngress {
		d.Clusters = f.behind(object)
		return d
	}
	for _, leaves := range f.config.Leaves.Needing(k, object.selector) {
		d.add(leaves.Clusters, leaves.Types)
	}
	for _, account := range f.of(splitter.KindServiceAccount).find(needIndex, k.String()) {
		d.add(workloadv1alpha1.Follows(account.GetAnnotations()), account.neededBy())
	}
	if k.Kind == splitter.KindService {
		return d // a Service does not go where its Ingress is
	}
	for _, ingress := range f.of(KindIngress).find(needIndex, k.String()) {
		if follows := workloadv1alpha1.Follows(ingress.GetAnnotations()); len(follows) > 0 {
			d.add(follows, []string{loader.Ingresses.String()})
		}
	}
	return d
}

// behind returns the clusters that have one of the backends of an Ingress.
func (f *Followers) behind(ingress *Object) []string {
	targets := map[splitter.Need][]string{}
	for _, need := range ingress.Needs {
		if need.Kind != splitter.KindService {
			continue
		}
		need.Optional = false
		if s := f.Get(key.OfNeed(ingress.GetNamespace(), need)); s != nil {
			targets[need] = workloadv1alpha1.Targets(s.GetLabels())
		}
	}
	clusters := splitter.Followers(ingress.Needs, targets)
	for _, ref := range ingress.refs {
		clusters = append(clusters, f.config.Leaves.Behind(ingress.GetNamespace(), ref)...)
	}
	return clusters
}

// rolling returns the clusters in which a leaf does not run its current spec yet. It checks the
// types that needed the follower. The needs of the earlier spec are no longer known.
func (f *Followers) rolling(object *Object, clusters []string) []string {
	types := object.neededBy()
	return slices.DeleteFunc(clusters, func(cluster string) bool {
		return !f.config.Leaves.IsRolling(object.GetNamespace(), cluster, types)
	})
}

// isHeld reports whether there may be leaves that need a follower but were not read.
func (f *Followers) isHeld(object *Object) bool {
	_, all := f.config.Leaves.Read()
	return !all || len(f.unseenTypes(object)) > 0
}

// unseenTypes returns the types in [neededByAnnotation] whose objects were not read.
func (f *Followers) unseenTypes(object *Object) []string {
	read, _ := f.config.Leaves.Read()
	ingresses := f.of(KindIngress)
	return slices.DeleteFunc(object.neededBy(), func(name string) bool {
		if name == loader.Ingresses.String() {
			return ingresses != nil && ingresses.HasSynced()
		}
		return slices.Contains(read, name)
	})
}
