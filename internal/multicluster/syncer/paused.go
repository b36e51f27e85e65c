package syncer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// maxNamed limits how many namespaces the message about paused deletions names.
const maxNamed = 20

// pausedCondition returns the condition DeletesPaused. It is nil if deletions were never paused.
func pausedCondition(b *breaker, cluster *workloadv1alpha1.Cluster) *metav1.Condition {
	c := &metav1.Condition{Type: workloadv1alpha1.ConditionDeletesPaused, Status: metav1.ConditionTrue, Reason: workloadv1alpha1.ReasonTooManyDeletes}
	if b.spent != "" {
		c.Reason = workloadv1alpha1.ReasonOldGoAhead
	}
	switch {
	case b.isPaused() && !b.counted:
		// Do not print the command yet, because the number is still growing.
		c.Message = fmt.Sprintf("Deletions are paused: %d so far. The syncer has not checked all objects since its start. %s", b.number(), pausedWhere(b))
	case b.isPaused():
		number := b.number()
		c.Message = fmt.Sprintf("%d deletions are paused. %s To allow them: kubectl annotate --overwrite clusters.workload.kcp.dev %s %s=%d",
			number, pausedWhere(b), cluster.Name, workloadv1alpha1.AllowDeletesAnnotation, number)
		if b.spent != "" {
			c.Message += " (remove the present annotation first: it has been used)"
		}
	case meta.FindStatusCondition(cluster.Status.Conditions, c.Type) != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonDeletesAgain, "No deletions are paused."
	default:
		return nil
	}
	return c
}

// pausedDeletes returns the paused deletions for the Cluster's status. It is nil if none are
// paused.
func pausedDeletes(b *breaker) *workloadv1alpha1.PausedDeletes {
	if !b.isPaused() {
		return nil
	}
	held := b.held()
	names := mostFirst(held)
	paused := &workloadv1alpha1.PausedDeletes{AllNamespaces: b.paused || len(names) > workloadv1alpha1.MaxPausedNamespaces}
	for _, name := range names[:min(len(names), workloadv1alpha1.MaxPausedNamespaces)] {
		paused.Namespaces = append(paused.Namespaces, workloadv1alpha1.PausedNamespace{Namespace: name, Deletes: int64(held[name])})
	}
	return paused
}

// resumePauses continues the pauses that the Cluster's status reports. A kcp or a syncer of an
// earlier version does not report the namespaces. All of them are paused then.
func resumePauses(b *breaker, cluster *workloadv1alpha1.Cluster) {
	c := meta.FindStatusCondition(cluster.Status.Conditions, workloadv1alpha1.ConditionDeletesPaused)
	if c == nil || c.Status != metav1.ConditionTrue {
		return
	}
	spent := ""
	if c.Reason == workloadv1alpha1.ReasonOldGoAhead {
		spent = cluster.Annotations[workloadv1alpha1.AllowDeletesAnnotation]
	}
	var namespaces []string
	if paused := cluster.Status.PausedDeletes; paused != nil && !paused.AllNamespaces {
		for _, n := range paused.Namespaces {
			namespaces = append(namespaces, n.Namespace)
		}
	}
	b.resume(spent, namespaces)
}

// mostFirst returns namespaces by their numbers of paused deletions, the most first.
func mostFirst(held map[string]int) []string {
	return slices.SortedFunc(maps.Keys(held), func(x, y string) int {
		return cmp.Or(cmp.Compare(held[y], held[x]), cmp.Compare(x, y))
	})
}

// pausedWhere names the limit that was exceeded, and the namespaces whose deletions are paused
// with their numbers.
func pausedWhere(b *breaker) string {
	held := b.held()
	names := mostFirst(held)
	var listed []string
	for i, name := range names {
		if i == maxNamed {
			listed = append(listed, fmt.Sprintf("and %d more", len(names)-i))
			break
		}
		if name == "" {
			name = "objects without a namespace"
		}
		listed = append(listed, fmt.Sprintf("%s (%d)", name, held[names[i]]))
	}
	list := strings.Join(listed, ", ")
	if b.paused {
		if list != "" {
			list = ": " + list
		}
		return fmt.Sprintf("All namespaces together exceeded their limit of %d deletions within %s, so the deletions of every namespace wait%s.", clusterFactor*b.allowed, b.limit.Window, list)
	}
	return fmt.Sprintf("Each of these namespaces exceeded its limit of %d deletions within %s: %s. Deletions in other namespaces continue.", b.allowed, b.limit.Window, list)
}
