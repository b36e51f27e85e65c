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

// none stands for the object before it is created.
var none = &metav1.ObjectMeta{}

// touched are the clusters for which a write needs leave, sorted: those that become
// targets or cease to be, those of which that is said to be the splitter's to decide, and
// those whose syncer gets a finalizer on the object and with it the right to read it.
func touched(before, now metav1.Object) []string {
	was, is := sets.New(workloadv1alpha1.Targets(before.GetLabels())...), sets.New(workloadv1alpha1.Targets(now.GetLabels())...)
	lent := follows(before).SymmetricDifference(follows(now))
	return sets.List(was.SymmetricDifference(is).Union(lent).Union(holders(now).Difference(holders(before))))
}

// follows are the clusters whose targets on the object the splitter takes away by itself.
func follows(object metav1.Object) sets.Set[string] {
	return sets.New(workloadv1alpha1.Follows(object.GetAnnotations())...)
}

// holders are the clusters whose syncers hold an object back from being removed.
func holders(object metav1.Object) sets.Set[string] {
	names := sets.New[string]()
	for _, finalizer := range object.GetFinalizers() {
		if name, ok := strings.CutPrefix(finalizer, workloadv1alpha1.FinalizerPrefix); ok {
			names.Insert(name)
		}
	}
	return names
}

// concerns says whether an object is sent to a cluster, or was and is not yet gone
// from it.
func concerns(object metav1.Object, cluster string) bool {
	return isTarget(object, cluster) || holders(object).Has(cluster)
}

func isTarget(object metav1.Object, cluster string) bool {
	return slices.Contains(workloadv1alpha1.Targets(object.GetLabels()), cluster)
}

// malformed finds labels that were meant to send the object somewhere and cannot.
// What was there before is left in peace.
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
			return nil // nowhere
		}
		return checkCluster(key, value)
	}
	name, ok := strings.CutPrefix(key, workloadv1alpha1.TargetLabelPrefix)
	if !ok {
		return nil
	}
	if value != "true" {
		return fmt.Errorf("label %s is %q: give it the value \"true\", or remove it", key, value)
	}
	return checkCluster(key, name)
}

func checkCluster(key, name string) error {
	if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
		return fmt.Errorf("label %s names %q, which no Cluster can be called: %s", key, name, strings.Join(faults, "; "))
	}
	return nil
}
