package rikctl

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// annotationDrain on a Node holds how many instances of each workload were ready
// when its drain began, as JSON: one that is interrupted and run again waits for
// as many as the first would have. Draining to the end, or uncordoning, takes it
// off.
const annotationDrain = "rik.dev/drain-baseline"

// resume reads what an interrupted drain of the node left. What cannot be read
// counts as nothing: the drain then begins anew.
func resume(ctx context.Context, c client.Client, node string) (map[string]int, error) {
	n := &rikv1alpha1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
		return nil, err
	}
	baseline := map[string]int{}
	if json.Unmarshal([]byte(n.Annotations[annotationDrain]), &baseline) != nil || baseline == nil {
		return map[string]int{}, nil //nolint:nilerr // as said above
	}
	return baseline, nil
}

// remember keeps the baseline before anything is deleted because of it; empty
// takes it off.
func (d *drainer) remember(ctx context.Context, baseline map[string]int) error {
	if maps.Equal(baseline, d.kept) {
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
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{annotationDrain: text}}})
	if err != nil {
		return err
	}
	n := &rikv1alpha1.Node{}
	n.Name = d.node
	if err := d.c.Patch(ctx, n, client.RawPatch(types.MergePatchType, patch), drainOwner); err != nil {
		return fmt.Errorf("noting the progress on node %s: %w", d.node, err)
	}
	d.kept = maps.Clone(baseline)
	return nil
}
