package rikctl

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// annotationTurn on a Workload names the node whose drain deletes instances of it right
// now. Drains of several nodes at once take turns: each would otherwise count the same
// instances as ready, and they would together let go more than the workload allows.
const annotationTurn = "rik.dev/drain-turn"

// turn takes the turn for a workload, as it was read before its instances were listed:
// what others deleted in theirs is in that list, then. It is false, with what to wait for
// if that is more than a moment, when it is another drain's.
func (d *drainer) turn(ctx context.Context, w *rikv1alpha1.Workload) (mine bool, waiting string, err error) {
	switch holder := w.Annotations[annotationTurn]; holder {
	case d.node:
		return true, "", nil // an earlier drain of this node was interrupted
	case "":
	default:
		if d.flags.force {
			break // whoever may write the Workload could else hold up its administrator
		}
		drains, err := d.mayDrain(ctx, holder)
		if err != nil || drains {
			return false, fmt.Sprintf("the drain of node %s, whose turn it is with workload %s/%s; if that was interrupted, run it again, uncordon the node, or give --force",
				holder, w.Namespace, w.Name), err
		}
	}
	taken := w.DeepCopy()
	if taken.Annotations == nil {
		taken.Annotations = map[string]string{}
	}
	taken.Annotations[annotationTurn] = d.node
	err = d.c.Patch(ctx, taken, client.MergeFromWithOptions(w, client.MergeFromWithOptimisticLock{}), drainOwner)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, "", nil // it is looked at again
	}
	if err != nil {
		return false, "", fmt.Errorf("taking the turn to drain with workload %s/%s: %w", w.Namespace, w.Name, err)
	}
	return true, "", nil
}

// mayDrain says whether a node is cordoned, as one is that is being drained.
func (d *drainer) mayDrain(ctx context.Context, node string) (bool, error) {
	n := &rikv1alpha1.Node{}
	err := d.c.Get(ctx, client.ObjectKey{Name: node}, n)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return n.Spec.Unschedulable, err
}

// pass gives the turn to the next.
func (d *drainer) pass(ctx context.Context, w *rikv1alpha1.Workload) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{annotationTurn: nil}}})
	if err != nil {
		return err
	}
	object := &rikv1alpha1.Workload{}
	object.Namespace, object.Name = w.Namespace, w.Name
	err = d.c.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), drainOwner)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("passing the turn to drain with workload %s/%s: %w", w.Namespace, w.Name, err)
	}
	return nil
}
