package syncerauth

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// none represents the object before its creation.
var none = &metav1.ObjectMeta{}

// touched returns the clusters for which a write needs permission, sorted. These are clusters
// that become targets or stop being targets, and clusters for which the write changes whether the
// splitter may remove the target. A cluster whose syncer gets a finalizer on the object is one
// too, because the finalizer gives the syncer read access.
func touched(before, now metav1.Object) []string {
	was, is := sets.New(workloadv1alpha1.Targets(before.GetLabels())...), sets.New(workloadv1alpha1.Targets(now.GetLabels())...)
	lent := follows(before).SymmetricDifference(follows(now))
	return sets.List(was.SymmetricDifference(is).Union(lent).Union(holders(now).Difference(holders(before))))
}

// follows returns the clusters whose targets on the object the splitter removes by itself.
func follows(object metav1.Object) sets.Set[string] {
	return sets.New(workloadv1alpha1.Follows(object.GetAnnotations())...)
}

// holders returns the clusters whose syncers have a finalizer on an object.
func holders(object metav1.Object) sets.Set[string] {
	names := sets.New[string]()
	for _, finalizer := range object.GetFinalizers() {
		if name, ok := strings.CutPrefix(finalizer, workloadv1alpha1.FinalizerPrefix); ok {
			names.Insert(name)
		}
	}
	return names
}

// concerns reports whether an object is sent to a cluster, or was sent and is not yet removed
// from it.
func concerns(object metav1.Object, cluster string) bool {
	return isTarget(object, cluster) || holders(object).Has(cluster)
}

func isTarget(object metav1.Object, cluster string) bool {
	return slices.Contains(workloadv1alpha1.Targets(object.GetLabels()), cluster)
}

// malformed returns an error for a new or changed label that is a malformed target. Labels from
// before the write are not checked.
func malformed(before, now metav1.Object) error {
	for key, value := range now.GetLabels() {
		if old, known := before.GetLabels()[key]; known && old == value {
			continue
		}
		if err := checkTarget(key, value); err != nil {
			return err
		}
	}
	return nil
}

func checkTarget(key, value string) error {
	if key == workloadv1alpha1.ClusterLabel {
		if value == "" {
			return nil // no target
		}
		return checkCluster(key, value)
	}
	name, ok := strings.CutPrefix(key, workloadv1alpha1.TargetLabelPrefix)
	if !ok {
		return nil
	}
	if value != "true" {
		return fmt.Errorf("label %s is %q: set it to \"true\", or remove it", key, value)
	}
	return checkCluster(key, name)
}

func checkCluster(key, name string) error {
	if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
		return fmt.Errorf("label %s names %q, which is not a valid name of a Cluster: %s", key, name, strings.Join(faults, "; "))
	}
	return nil
}
