package loader

import (
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// NameIn is what the root's part in a cluster is called there. A leaf that there is keeps its
// name. A new one is called as the root, so that the names of its pods, claims and Services are
// those that users write down, unless the root is divided by its replicas: the same pod in two
// clusters would be two pods. A root with data under names of leaves keeps such names.
func (w *World) NameIn(cluster string) string {
	if leaf := w.Leaf(cluster); leaf != nil {
		return workloadv1alpha1.NameInCluster(leaf)
	}
	asLeaf := w.Division == workloadv1alpha1.DivideReplicas || w.State.Progress.LeafNames
	switch w.Root.GetAnnotations()[workloadv1alpha1.NamesAnnotation] {
	case workloadv1alpha1.NamesRoot:
		asLeaf = false
	case workloadv1alpha1.NamesLeaf:
		asLeaf = true
	}
	if asLeaf {
		return splitter.LeafName(w.Root.GetName(), cluster)
	}
	return w.Root.GetName()
}
