package splitter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"rik.dev/rik/api/inherit"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/terminal"
)

// The annotations that the splitter writes.
const (
	// AtMostAnnotation on a leaf contains [Leaf].AtMost.
	AtMostAnnotation = "splitter.workloads.kcp.dev/at-most"
	// LostAtAnnotation on a leaf contains [Leaf].LostAt.
	LostAtAnnotation = "splitter.workloads.kcp.dev/lost-at"
	// RefusedAtAnnotation on a leaf contains [Leaf].RefusedAt.
	RefusedAtAnnotation = "splitter.workloads.kcp.dev/refused-at"
	// ProgressAnnotation on a root contains [Progress] as JSON.
	ProgressAnnotation = "splitter.workloads.kcp.dev/progress"

	splitterPrefix = "splitter.workloads.kcp.dev/"
)

// maxLeafName is the smallest limit of all kinds. CronJobs have this limit. So do StatefulSets:
// their name and an 11-byte hash are the value of a label.
const maxLeafName = 52

// LeafName returns ROOT--CLUSTER. A name that would be too long, or that another root and cluster
// could also have, is cut and ends in a hash of both names.
func LeafName(root, cluster string) string {
	name := root + "--" + cluster
	if len(name) <= maxLeafName && !strings.Contains(root, "--") && !strings.Contains(cluster, "--") {
		return name
	}
	return shorten(name, root+"/"+cluster, maxLeafName)
}

// shorten cuts a name to a length. The result ends in a hash of whole.
func shorten(name, whole string, length int) string {
	sum := sha256.Sum256([]byte(whole))
	hash := hex.EncodeToString(sum[:])[:10]
	name = name[:min(len(name), length-len(hash)-1)]
	return strings.TrimRight(name, "-._") + "-" + hash
}

// OwnerLabel returns the value of [workloadv1alpha1.OwnedByLabel] for a root. The name of an
// object can be longer than the value of a label.
func OwnerLabel(root string) string {
	if len(validation.IsValidLabelValue(root)) == 0 {
		return root
	}
	return shorten(root, root, validation.LabelValueMaxLength)
}

// ScalePath contains the paths of a type's replicas, if they differ from spec.replicas and
// status.replicas.
type ScalePath struct {
	Spec, Status []string
}

// SpecPath returns the path of the replicas in the spec of an object.
func (p ScalePath) SpecPath() []string { return p.spec() }

func (p ScalePath) spec() []string {
	if len(p.Spec) == 0 {
		return []string{"spec", "replicas"}
	}
	return p.Spec
}

func (p ScalePath) status() []string {
	if len(p.Status) == 0 {
		return []string{"status", "replicas"}
	}
	return p.Status
}

// Render returns the desired leaf of a root in a cluster. If replicas is nil, the leaf keeps the
// replicas of the root. Render leaves out metadata that concerns only the root: its targets,
// owners, finalizers and hints, the annotations of syncers, and the marks of tools
// ([inherit.IsMark]). It copies the annotations that request a fence or yield fields.
func Render(root *unstructured.Unstructured, cluster string, path ScalePath, replicas *int32) (*unstructured.Unstructured, error) {
	leaf := &unstructured.Unstructured{Object: map[string]any{}}
	for name, value := range root.Object {
		if name != "metadata" && name != "status" {
			leaf.Object[name] = value
		}
	}
	leaf = leaf.DeepCopy()
	leaf.SetName(LeafName(root.GetName(), cluster))
	leaf.SetNamespace(root.GetNamespace())
	set := inherit.Copy(root.GetLabels())
	maps.DeleteFunc(set, func(name, _ string) bool { return isOwnLabel(name) })
	set = put(set, workloadv1alpha1.ClusterLabel, cluster)
	leaf.SetLabels(put(set, workloadv1alpha1.OwnedByLabel, OwnerLabel(root.GetName())))
	notes := inherit.Copy(root.GetAnnotations())
	maps.DeleteFunc(notes, func(name, _ string) bool { return isOwnAnnotation(name) })
	if len(notes) > 0 {
		leaf.SetAnnotations(notes)
	}
	leaf.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(root, root.GroupVersionKind())})
	if replicas == nil {
		return leaf, nil
	}
	if err := unstructured.SetNestedField(leaf.Object, int64(*replicas), path.spec()...); err != nil {
		return nil, fmt.Errorf("setting %s of %s: %w", strings.Join(path.spec(), "."), leaf.GetName(), err)
	}
	return leaf, nil
}

func isOwnLabel(name string) bool {
	return name == workloadv1alpha1.ClusterLabel || name == workloadv1alpha1.OwnedByLabel || name == inherit.InstanceLabel ||
		strings.HasPrefix(name, workloadv1alpha1.TargetLabelPrefix)
}

// isOwnAnnotation reports whether an annotation concerns only the root.
func isOwnAnnotation(name string) bool {
	for _, prefix := range []string{
		workloadv1alpha1.HintPrefix, splitterPrefix, workloadv1alpha1.StatusAnnotationPrefix, workloadv1alpha1.ProblemAnnotationPrefix,
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return name == workloadv1alpha1.FollowsAnnotation || name == workloadv1alpha1.NameAnnotation || name == workloadv1alpha1.UpstreamNameAnnotation
}

// Stamp writes to the annotations of a leaf what later decisions must know about a change.
func Stamp(leaf *unstructured.Unstructured, c Change) {
	notes := leaf.GetAnnotations()
	if c.Action == Note {
		notes = put(notes, LostAtAnnotation, c.LostAt.UTC().Format(time.RFC3339))
	} else {
		notes = put(notes, AtMostAnnotation, strconv.Itoa(int(c.AtMost)))
	}
	if !c.RefusedAt.IsZero() {
		notes = put(notes, RefusedAtAnnotation, c.RefusedAt.UTC().Format(time.RFC3339))
	}
	leaf.SetAnnotations(notes)
}

// refusals are the reasons in a syncer's problem annotation that mean that the cluster refuses
// the object.
var refusals = []string{"Refused", "Conflict", "NamespaceConflict"}

// isRefused reports whether the cluster of a leaf refuses the leaf as it is.
func isRefused(leaf *unstructured.Unstructured, cluster string) bool {
	reason, _, _ := strings.Cut(leaf.GetAnnotations()[workloadv1alpha1.ProblemAnnotationPrefix+cluster], ":")
	return slices.Contains(refusals, reason)
}

// ReadLeaf reads a [Leaf] from its object. It counts the replicas of a divided leaf, and counts
// any other leaf as one. The caller must set Bound.
func ReadLeaf(leaf *unstructured.Unstructured, path ScalePath, divide workloadv1alpha1.Division) Leaf {
	out := Leaf{
		Cluster: leaf.GetLabels()[workloadv1alpha1.ClusterLabel], Replicas: 1,
		Deleting: leaf.GetDeletionTimestamp() != nil,
	}
	if at, err := time.Parse(time.RFC3339, leaf.GetAnnotations()[LostAtAnnotation]); err == nil {
		out.LostAt = at
	}
	if at, err := time.Parse(time.RFC3339, leaf.GetAnnotations()[RefusedAtAnnotation]); err == nil {
		out.RefusedAt = at
	}
	status, _, _ := unstructured.NestedMap(leaf.Object, "status")
	out.Refused = isRefused(leaf, out.Cluster)
	out.Never = out.Refused && len(status) == 0
	seen, isSeen, _ := unstructured.NestedInt64(leaf.Object, "status", "observedGeneration")
	out.Settled = isSeen && seen == leaf.GetGeneration()
	replicas, running := int32At(leaf, 1, path.spec()), int32At(leaf, 0, path.status())
	ready := int32At(leaf, 0, []string{"status", "readyReplicas"})
	if divide != workloadv1alpha1.DivideReplicas {
		out.Running = 1
		_, out.Finished = terminal.Of(leaf)
		if isReady(leaf, isSeen && !out.Settled, replicas, ready) {
			out.Ready = 1
		}
		return out
	}
	out.Replicas, out.Running, out.Ready = replicas, running, ready
	if most, err := strconv.ParseInt(leaf.GetAnnotations()[AtMostAnnotation], 10, 32); err == nil {
		out.AtMost = int32(most)
	}
	own := strings.Join(path.spec(), ".")
	for field := range strings.SplitSeq(leaf.GetAnnotations()[workloadv1alpha1.YieldAnnotation], ",") {
		// An autoscaler does not set the replicas of a leaf that has 0 replicas.
		out.Autoscaled = out.Autoscaled || replicas > 0 && strings.TrimPrefix(strings.TrimSpace(field), ".") == own
	}
	return out
}

// isReady reports whether a leaf that is not divided is ready. It uses the conditions of the
// leaf. If no condition describes readiness, it uses the replicas.
func isReady(leaf *unstructured.Unstructured, stale bool, replicas, ready int32) bool {
	if stale || leaf.Object["status"] == nil {
		return false
	}
	said := false
	for _, c := range conditionsOf(leaf.Object) {
		if c["type"] == "Ready" || c["type"] == "Available" {
			if c["status"] != "True" {
				return false
			}
			said = true
		}
	}
	_, counts, _ := unstructured.NestedFieldNoCopy(leaf.Object, "spec", "replicas")
	return said || !counts || ready >= replicas
}

// int32At returns the number at a path in an object. It returns otherwise if the path has no
// number in the range of a non-negative int32.
func int32At(object *unstructured.Unstructured, otherwise int32, path []string) int32 {
	n, found, err := unstructured.NestedInt64(object.Object, path...)
	if err != nil || !found || n < 0 || n > 1<<31-1 {
		return otherwise
	}
	return int32(n)
}

// HeldAfter returns the clusters whose syncers have a finalizer on an object that is no longer
// sent there.
func HeldAfter(object metav1.Object) []string {
	targets := workloadv1alpha1.Targets(object.GetLabels())
	var held []string
	for _, finalizer := range object.GetFinalizers() {
		if name, ok := strings.CutPrefix(finalizer, workloadv1alpha1.FinalizerPrefix); ok && !slices.Contains(targets, name) {
			held = append(held, name)
		}
	}
	return held
}
