package loader

import (
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// NameIn returns the name of the root's object in a cluster. An existing leaf keeps its name. A
// new one has the name of the root, so that its pods, claims and Services have the names that
// users expect. The exception is a root that is divided by its replicas: its pods would have the
// same names in two clusters but be different pods. A root that has data under the names of its
// leaves continues to use such names.
func (w *RootState) NameIn(cluster string) string {
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
