package controllerterm

import "strconv"

const (
	// Namespace is the namespace of the controller's own objects.
	Namespace = "rik-system"
	// LeaseName is the Lease that the active controller holds.
	LeaseName = "rik-controller"
	// AnnotationBase is an annotation of the Lease whose value is added to the term. It is set when
	// an operator has confirmed that nodes accepted terms above that of a restored Lease, and when
	// a backup is restored.
	AnnotationBase = "rik.dev/term-base"
	// AnnotationRestored is an annotation of the Lease of a cluster that was restored from a
	// backup. It has the time and the ID of the backup. An administrator removes it with `rikctl
	// restore finish`. Until then nodes stop no instance only because the cluster has no record of it.
	AnnotationRestored = "rik.dev/restored-from"
)

// OfLease returns the term of the holder of a Lease with these annotations and transitions. Every
// change of holder adds one, and every run is a new holder. The first holder has 0 changes.
func OfLease(annotations map[string]string, transitions *int32) int64 {
	base, err := strconv.ParseInt(annotations[AnnotationBase], 10, 64)
	if err != nil || base < 0 {
		base = 0
	}
	if transitions == nil {
		return base + 1
	}
	return base + int64(*transitions) + 1
}
