package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/ownership"
)

// AnnotationBaseline is an annotation of a Node. It holds, as JSON, how many instances of each
// workload were ready when the drain began. A drain that is interrupted and run again waits for
// the same number. The end of the drain removes the annotation, and so does uncordon.
const AnnotationBaseline = "rik.dev/drain-baseline"

// Resume reads the baseline of an interrupted drain of the node. It ignores a baseline that it
// cannot parse; the drain then starts with a new one.
func Resume(ctx context.Context, c client.Client, node string) (map[string]int, error) {
	n := &rikv1alpha1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
		return nil, err
	}
	baseline := map[string]int{}
	if json.Unmarshal([]byte(n.Annotations[AnnotationBaseline]), &baseline) != nil || baseline == nil {
		return map[string]int{}, nil //nolint:nilerr // as said above
	}
	return baseline, nil
}

// Remember saves the baseline before the drain deletes anything. An empty baseline removes the
// annotation.
func (d *Executor) Remember(ctx context.Context, baseline map[string]int) error {
	if maps.Equal(baseline, d.Kept) {
		return nil
	}
	var text *string
	if len(baseline) > 0 {
		raw, err := json.Marshal(baseline)
		if err != nil {
			return err
		}
		s := string(raw)
		text = &s
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{AnnotationBaseline: text}}})
	if err != nil {
		return err
	}
	n := &rikv1alpha1.Node{}
	n.Name = d.Node
	if err := d.Client.Patch(ctx, n, client.RawPatch(types.MergePatchType, patch), ownership.Drain); err != nil {
		return fmt.Errorf("saving the progress of the drain in node %s: %w", d.Node, err)
	}
	d.Kept = maps.Clone(baseline)
	return nil
}
