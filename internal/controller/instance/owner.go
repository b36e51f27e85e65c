package instance

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Owner is the UID of the Workload that owns an object, if any.
func Owner(o client.Object) types.UID {
	for _, ref := range o.GetOwnerReferences() {
		if ref.Kind == "Workload" {
			return ref.UID
		}
	}
	return ""
}

// IsOrphan says whether an object was left behind on purpose by a Workload that is gone.
func IsOrphan(o client.Object) bool { return o.GetAnnotations()[rikv1alpha1.AnnotationOrphaned] != "" }

// Belongs says whether an instance is the workload's: it names it, and is neither an orphan nor
// owned by an earlier one of the same name.
func Belongs(in *rikv1alpha1.Instance, w *rikv1alpha1.Workload) bool {
	uid := Owner(in)
	return !IsOrphan(in) && (uid == "" || uid == w.UID)
}
