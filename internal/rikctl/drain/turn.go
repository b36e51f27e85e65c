package drain

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/ownership"
)

// AnnotationTurn is an annotation of a Workload. It names the node whose drain is deleting
// instances of the workload. Drains of several nodes take turns, because otherwise each would
// count the same instances as ready, and together they would delete more than the workload
// allows.
const AnnotationTurn = "rik.dev/drain-turn"

// Turn takes the turn for a workload. w must be from before the list of the instances, so that
// the list includes the deletions of earlier turns. mine is false if another drain has the turn;
// waiting then says what to wait for, or is empty if the wait is short.
func (d *Executor) Turn(ctx context.Context, w *rikv1alpha1.Workload) (mine bool, waiting string, err error) {
	switch holder := w.Annotations[AnnotationTurn]; holder {
	case d.Node:
		return true, "", nil // an earlier drain of this node was interrupted
	case "":
	default:
		if d.Options.Force {
			break // otherwise a user who may write the Workload could block its administrator
		}
		drains, err := d.mayDrain(ctx, holder)
		if err != nil || drains {
			return false, fmt.Sprintf("the drain of node %s, which has the turn for workload %s/%s; if that drain was interrupted, run it again, uncordon the node, or use --force",
				holder, w.Namespace, w.Name), err
		}
	}
	taken := w.DeepCopy()
	if taken.Annotations == nil {
		taken.Annotations = map[string]string{}
	}
	taken.Annotations[AnnotationTurn] = d.Node
	err = d.Client.Patch(ctx, taken, client.MergeFromWithOptions(w, client.MergeFromWithOptimisticLock{}), ownership.Drain)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, "", nil // the next step tries again
	}
	if err != nil {
		return false, "", fmt.Errorf("taking the turn to drain with workload %s/%s: %w", w.Namespace, w.Name, err)
	}
	return true, "", nil
}

// mayDrain reports whether a node is cordoned, as a node is during its drain.
func (d *Executor) mayDrain(ctx context.Context, node string) (bool, error) {
	n := &rikv1alpha1.Node{}
	err := d.Client.Get(ctx, client.ObjectKey{Name: node}, n)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return n.Spec.Unschedulable, err
}

// pass releases the turn.
func (d *Executor) pass(ctx context.Context, w *rikv1alpha1.Workload) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{AnnotationTurn: nil}}})
	if err != nil {
		return err
	}
	object := &rikv1alpha1.Workload{}
	object.Namespace, object.Name = w.Namespace, w.Name
	err = d.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), ownership.Drain)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("passing the turn to drain with workload %s/%s: %w", w.Namespace, w.Name, err)
	}
	return nil
}
