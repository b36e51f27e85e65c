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
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// writeStatus writes what the leaves' statuses add up to, if the root does not say so.
func (p *pass) writeStatus(ctx context.Context) error {
	if !p.k.Reports {
		return nil
	}
	if p.world.State.Root.Finished && len(p.world.State.Leaves) == 0 {
		return nil // what is left of its work is this status: without it, it would run again
	}
	before, _ := p.root.Object["status"].(map[string]any)
	status := rootStatus(p.world, p.result, p.plan, before, p.now())
	if len(status) == len(before) && (len(status) == 0 || reflect.DeepEqual(status, before)) {
		return nil
	}
	written, err := p.putStatus(ctx, status)
	if apierrors.IsInvalid(err) {
		// A cluster may say numbers whose sum does not fit: the others are not to be unheard
		// for that.
		splitter.Cap(status)
		if reflect.DeepEqual(status, before) {
			return nil
		}
		written, err = p.putStatus(ctx, status)
	}
	if apierrors.IsInvalid(err) {
		// Joined conditions need not fit into the status of every type.
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
	p.k.written.note(nameKey(p.key.Namespace, p.key.Name), r, false)
	return nil
}

// putStatus writes a status of the root, as it was seen.
func (p *pass) putStatus(ctx context.Context, status map[string]any) (*unstructured.Unstructured, error) {
	next := &unstructured.Unstructured{Object: map[string]any{"apiVersion": p.root.GetAPIVersion(), "kind": p.root.GetKind(), "status": status}}
	next.SetName(p.root.GetName())
	next.SetNamespace(p.root.GetNamespace())
	next.SetUID(p.root.GetUID())
	next.SetResourceVersion(p.root.GetResourceVersion())
	return p.dynamic.Resource(p.k.GVR()).Namespace(p.key.Namespace).
		UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager})
}

// rootStatus is what a root's status has to be. While something is still to be written of
// the leaves, their statuses are those of another spec, and the root's generation does not
// count as observed.
func rootStatus(w *loader.World, result splitter.Result, p *plan, before map[string]any, now time.Time) map[string]any {
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

// refusal is what a cluster says of the leaf that it refuses.
func refusal(w *loader.World, cluster string) string {
	if leaf := w.Leaf(cluster); leaf != nil {
		return leaf.GetAnnotations()[workloadv1alpha1.ProblemAnnotationPrefix+cluster]
	}
	return ""
}

// lostClusters are those that cannot be asked and have lost their parts: what their
// leaves say is of the past.
func lostClusters(w *loader.World, result splitter.Result) map[string]bool {
	lost := map[string]bool{}
	for _, share := range result.Explanation.Clusters {
		lost[share.Cluster] = share.Standing == splitter.Out ||
			slices.ContainsFunc(share.Reasons, func(r splitter.Reason) bool { return r.Code == splitter.NobodyElse })
	}
	for i := range w.State.Clusters {
		if c := &w.State.Clusters[i]; c.Ready && !c.Removing {
			lost[c.Name] = false
		}
	}
	return lost
}

// datestamp gives conditions that have no time the one since when they are so.
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
