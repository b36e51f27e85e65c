package loader

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// Role is the role of an object of a divided type.
type Role string

// The roles.
const (
	// Root is an object that is divided.
	Root Role = "root"
	// Leaf is the part of a root for one cluster. [Owner] returns the root.
	Leaf Role = "leaf"
	// Targeted objects have target labels of their own. The splitter does not divide them.
	Targeted Role = "targeted"
)

// RoleOf returns the role of an object of a type.
func RoleOf(object metav1.Object, t Type) Role {
	switch {
	case object.GetLabels()[workloadv1alpha1.OwnedByLabel] != "", controller(object, t.GVK) != nil:
		return Leaf
	case len(workloadv1alpha1.Targets(object.GetLabels())) > 0:
		return Targeted
	}
	return Root
}

// Owner returns the root of a leaf, from the leaf's controller. It is empty if the leaf has none.
func Owner(leaf metav1.Object, t Type) (name string, uid types.UID) {
	if ref := controller(leaf, t.GVK); ref != nil {
		return ref.Name, ref.UID
	}
	return "", ""
}

// controller returns the controller of an object if that has the same type, and otherwise nil.
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

// belongs reports whether an object is a leaf of a root. former is true if it is a leaf of an
// earlier root with that name. The replicas of such a leaf may still run.
func belongs(object, root metav1.Object, t Type) (is, former bool) {
	if ref := metav1.GetControllerOfNoCopy(object); ref != nil {
		if own := controller(object, t.GVK); own == nil || own.Name != root.GetName() {
			return false, false
		}
		return true, ref.UID != root.GetUID()
	}
	return object.GetLabels()[workloadv1alpha1.OwnedByLabel] == splitter.OwnerLabel(root.GetName()), false
}

// clusterOf returns the cluster of a leaf from its label. If the label was changed, it uses the
// name of the leaf. It is empty if the root did not make this leaf.
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
