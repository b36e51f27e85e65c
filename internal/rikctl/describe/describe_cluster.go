package describe

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/describe"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/printer"
)

// writeCluster describes a Cluster. It never prints a kubeconfig.
func writeCluster(w describe.PrefixWriter, o *workloadv1alpha1.Cluster) {
	shown := o.ObjectMeta.DeepCopy()
	// This annotation contains an inline kubeconfig.
	delete(shown.Annotations, corev1.LastAppliedConfigAnnotation)
	writeMeta(w, shown)
	printer.Field(w, 0, "Location", o.Status.Location)
	printer.Optional(w, 0, "Cluster UID", o.Status.UID)
	printer.Optional(w, 0, "Version", o.Status.Version)
	printer.Field(w, 0, "Kubeconfig", kubeconfigPlace(&o.Spec))
	printer.Field(w, 0, "Sync mode", orDefault(string(o.Spec.SyncMode), "default of the kcp"))
	printer.Field(w, 0, "Schedulable", map[bool]string{false: "yes", true: "no"}[o.Spec.Unschedulable])
	printer.Optional(w, 0, "Evict after", moment(o.Spec.EvictAfter))
	printer.Optional(w, 0, "Taints", clusterTaints(o.Spec.Taints))
	printer.Field(w, 0, "Fences", fences(o.Status.Conditions))
	printer.Optional(w, 0, "Cluster-scoped types", strings.Join(o.Spec.ClusterScopedResources, ", "))
	printer.Field(w, 0, "Synced types", strings.Join(o.Status.SyncedResources, ", "))
	printer.Optional(w, 0, "Same cluster as", o.Status.SameAs)
	printer.Optional(w, 0, "Last heartbeat", moment(o.Status.LastHeartbeatTime))
	writeSupply(w, o.Status.Capacity, o.Status.Allocatable)
	writeResourceProblems(w, o.Status.ResourceProblems)
	writePausedDeletes(w, o.Status.PausedDeletes)
	writeConditions(w, o.Status.Conditions)
}

func clusterTaints(taints []workloadv1alpha1.ClusterTaint) string {
	var words []string
	for _, taint := range taints {
		text := taint.Key
		if taint.Value != "" {
			text += "=" + taint.Value
		}
		words = append(words, text+":"+string(taint.Effect))
	}
	return strings.Join(words, ", ")
}

// fences reports whether a cluster stops fenced workloads by itself when it loses the kcp.
func fences(conditions []metav1.Condition) string {
	c := meta.FindStatusCondition(conditions, workloadv1alpha1.ConditionFencing)
	switch {
	case c == nil:
		return "unknown"
	case c.Status == metav1.ConditionTrue:
		return "yes"
	}
	return "no"
}

// defaultKey is the key of a kubeconfig in a Secret if the Cluster names none.
const defaultKey = "kubeconfig"

// kubeconfigPlace names the place of the kubeconfig.
func kubeconfigPlace(spec *workloadv1alpha1.ClusterSpec) string {
	switch ref := spec.KubeconfigSecretRef; {
	case ref != nil:
		return "Secret " + ref.Namespace + "/" + ref.Name + ", key " + orDefault(ref.Key, defaultKey)
	case spec.KubeConfig != "":
		return "in the Cluster itself"
	}
	return ""
}

func orDefault(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// writeResourceProblems writes a table of the types that have a problem.
func writeResourceProblems(w describe.PrefixWriter, problems []workloadv1alpha1.ResourceProblem) {
	if len(problems) == 0 {
		return
	}
	w.Flush()
	defer w.Flush()
	w.Write(0, "Problems with types:\n")
	w.Write(1, "Type\tReason\tSince\tMessage\n")
	for _, p := range problems {
		w.Write(1, "%s\t%s\t%s\t%s\n", p.Resource, p.Reason, moment(&p.Since), oneLine(p.Message))
	}
}

// writePausedDeletes writes a table of the namespaces whose deletions wait for a go-ahead.
func writePausedDeletes(w describe.PrefixWriter, paused *workloadv1alpha1.PausedDeletes) {
	if paused == nil {
		return
	}
	w.Flush()
	defer w.Flush()
	if paused.AllNamespaces {
		w.Write(0, "Paused deletions (every namespace is paused):\n")
	} else {
		w.Write(0, "Paused deletions:\n")
	}
	w.Write(1, "Namespace\tDeletions\n")
	for _, n := range paused.Namespaces {
		w.Write(1, "%s\t%d\n", orDefault(n.Namespace, "(objects without a namespace)"), n.Deletes)
	}
}

// oneLine removes line breaks from a message of a cluster, so that it fits into one row of a
// table.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// writeSupply writes a table of the total capacity of the cluster's nodes.
func writeSupply(w describe.PrefixWriter, capacity, allocatable corev1.ResourceList) {
	if len(capacity) == 0 {
		return
	}
	w.Flush() // end the table, so that the next one has columns of its own width
	defer w.Flush()
	w.Write(0, "Total of all nodes:\n")
	w.Write(1, "Resource\tCapacity\tAllocatable\n")
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		all, free := capacity[name], allocatable[name]
		w.Write(1, "%s\t%s\t%s\n", name, all.String(), free.String())
	}
}
