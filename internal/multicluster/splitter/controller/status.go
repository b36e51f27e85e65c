package controller

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// writeStatus writes the combined status of the leaves to the root, if it has changed.
func (p *pass) writeStatus(ctx context.Context) error {
	if !p.k.Reports {
		return nil
	}
	if p.state.State.Root.Finished && len(p.state.State.Leaves) == 0 {
		// the status records that its work is finished: without it, the work would run again
		return nil
	}
	before, _ := p.root.Object["status"].(map[string]any)
	status := rootStatus(p.state, p.result, p.plan, before, p.now())
	if len(status) == len(before) && (len(status) == 0 || reflect.DeepEqual(status, before)) {
		return nil
	}
	written, err := p.putStatus(ctx, status)
	if apierrors.IsInvalid(err) {
		// The sum of the numbers that clusters report may be too large for the field. This must
		// not block the reports of the other clusters.
		splitter.Cap(status)
		if reflect.DeepEqual(status, before) {
			return nil
		}
		written, err = p.putStatus(ctx, status)
	}
	if apierrors.IsInvalid(err) {
		// Merged conditions may not be valid in the status of every type.
		p.reportStatus(err.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("writing the status of %s: %w", p.key.Name, err)
	}
	p.reportStatus("")
	r, err := newEntry(written, p.k.Type)
	if err != nil {
		return err
	}
	p.k.written.note(key.Name(p.key.Namespace, p.key.Name), r, false)
	return nil
}

// putStatus writes the status of the root, if the root has not changed since it was read.
func (p *pass) putStatus(ctx context.Context, status map[string]any) (*unstructured.Unstructured, error) {
	next := &unstructured.Unstructured{Object: map[string]any{"apiVersion": p.root.GetAPIVersion(), "kind": p.root.GetKind(), "status": status}}
	next.SetName(p.root.GetName())
	next.SetNamespace(p.root.GetNamespace())
	next.SetUID(p.root.GetUID())
	next.SetResourceVersion(p.root.GetResourceVersion())
	return p.dynamic.Resource(p.k.GVR()).Namespace(p.key.Namespace).
		UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager})
}

// rootStatus returns the desired status of a root. While leaves still have to be written, their
// statuses describe another spec. The generation of the root does not count as observed then.
func rootStatus(w *loader.RootState, result splitter.Result, p *plan, before map[string]any, now time.Time) map[string]any {
	total := splitter.Total{
		Divide: w.Division, Generation: w.Root.GetGeneration(), Unplaced: result.Unplaced + result.Stranded,
		NoClusters: len(w.State.Clusters) == 0, RefusedIn: result.Refused, Refusal: refusal(w, result.Refused),
	}
	total.Seen, _, _ = unstructured.NestedInt64(map[string]any{"status": before}, "status", "observedGeneration")
	for _, problem := range w.Problems {
		total.Refused = append(total.Refused, problem.Error())
	}
	if len(p.steps) > 0 || len(total.Refused) > 0 {
		total.Generation = total.Seen
	}
	lost := lostClusters(w, result)
	for i := range w.State.Leaves {
		leaf := &w.State.Leaves[i]
		if leaf.Deleting || lost[leaf.Cluster] {
			continue
		}
		status, _ := w.Leaves[i].Object["status"].(map[string]any)
		total.Parts = append(total.Parts, splitter.Part{
			Cluster: leaf.Cluster, Current: leaf.Settled && !p.pending[leaf.Cluster], Behind: p.behind[leaf.Cluster], Status: status,
		})
	}
	status := splitter.Aggregate(total)
	datestamp(status, before, now)
	return status
}

// refusal returns the message of a cluster about the leaf that it refuses.
func refusal(w *loader.RootState, cluster string) string {
	if leaf := w.Leaf(cluster); leaf != nil {
		return leaf.GetAnnotations()[workloadv1alpha1.ProblemAnnotationPrefix+cluster]
	}
	return ""
}

// lostClusters returns the clusters that do not answer and have lost their parts. The statuses of
// their leaves are out of date.
func lostClusters(w *loader.RootState, result splitter.Result) map[string]bool {
	lost := map[string]bool{}
	for _, share := range result.Explanation.Clusters {
		lost[share.Cluster] = share.Standing == splitter.Out ||
			slices.ContainsFunc(share.Reasons, func(r splitter.Reason) bool { return r.Code == splitter.NoOtherCluster })
	}
	for i := range w.State.Clusters {
		if c := &w.State.Clusters[i]; c.Ready && !c.Removing {
			lost[c.Name] = false
		}
	}
	return lost
}

// datestamp sets the transition time of conditions that have none.
func datestamp(status, before map[string]any, now time.Time) {
	conditions, _ := status["conditions"].([]any)
	earlier, _ := before["conditions"].([]any)
	for _, entry := range conditions {
		c, ok := entry.(map[string]any)
		if !ok || c["lastTransitionTime"] != nil {
			continue
		}
		c["lastTransitionTime"] = now.UTC().Format(time.RFC3339)
		for _, entry := range earlier {
			old, ok := entry.(map[string]any)
			if ok && old["type"] == c["type"] && old["status"] == c["status"] && old["lastTransitionTime"] != nil {
				c["lastTransitionTime"] = old["lastTransitionTime"]
			}
		}
	}
}
