package instance

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Owner returns the UID of the Workload that owns an object. It is empty if there is none.
func Owner(o client.Object) types.UID {
	for _, ref := range o.GetOwnerReferences() {
		if ref.Kind == "Workload" {
			return ref.UID
		}
	}
	return ""
}

// IsOrphan reports whether a deleted Workload left the object behind on purpose.
func IsOrphan(o client.Object) bool { return o.GetAnnotations()[rikv1alpha1.AnnotationOrphaned] != "" }

// Belongs reports whether an instance belongs to the workload: it names the workload, and is
// neither an orphan nor owned by an earlier workload of the same name.
func Belongs(in *rikv1alpha1.Instance, w *rikv1alpha1.Workload) bool {
	uid := Owner(in)
	return !IsOrphan(in) && (uid == "" || uid == w.UID)
}
