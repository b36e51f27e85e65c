package loader

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// Role is what an object of a divided type is.
type Role string

// The roles.
const (
	// Root is what is divided.
	Root Role = "root"
	// Leaf is a part of a root. [Owner] says of which.
	Leaf Role = "leaf"
	// Targeted objects are sent to clusters by their own labels, and are none of ours.
	Targeted Role = "targeted"
)

// RoleOf says what an object of a type is.
func RoleOf(object metav1.Object, t Type) Role {
	switch {
	case object.GetLabels()[workloadv1alpha1.OwnedByLabel] != "", controller(object, t.GVK) != nil:
		return Leaf
	case len(workloadv1alpha1.Targets(object.GetLabels())) > 0:
		return Targeted
	}
	return Root
}

// Owner is the root of a leaf by its controller; empty if it has none.
func Owner(leaf metav1.Object, t Type) (name string, uid types.UID) {
	if ref := controller(leaf, t.GVK); ref != nil {
		return ref.Name, ref.UID
	}
	return "", ""
}

// controller is an object's controller if that is of the same type.
func controller(object metav1.Object, kind schema.GroupVersionKind) *metav1.OwnerReference {
	ref := metav1.GetControllerOfNoCopy(object)
	if ref == nil || ref.Kind != kind.Kind {
		return nil
	}
	if gv, err := schema.ParseGroupVersion(ref.APIVersion); err != nil || gv.Group != kind.Group {
		return nil
	}
	return ref
}

// belongs says whether an object is a leaf of a root, or was one of an earlier root of
// that name, whose parts may still run.
func belongs(object, root metav1.Object, t Type) (is, former bool) {
	if ref := metav1.GetControllerOfNoCopy(object); ref != nil {
		if own := controller(object, t.GVK); own == nil || own.Name != root.GetName() {
			return false, false
		}
		return true, ref.UID != root.GetUID()
	}
	return object.GetLabels()[workloadv1alpha1.OwnedByLabel] == splitter.OwnerLabel(root.GetName()), false
}

// clusterOf is the cluster that a leaf is for: by its label, or if that was changed by
// its name. Empty: it is none that the root has made.
func clusterOf(leaf metav1.Object, root string, clusters []string) string {
	isFor := func(cluster string) bool {
		return cluster != "" && splitter.LeafName(root, cluster) == leaf.GetName()
	}
	if cluster := leaf.GetLabels()[workloadv1alpha1.ClusterLabel]; isFor(cluster) {
		return cluster
	}
	if i := slices.IndexFunc(clusters, isFor); i >= 0 {
		return clusters[i]
	}
	return ""
}
