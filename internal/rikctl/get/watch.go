package get

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/workloadkind"
)

// followOfKind prints the line of a workload each time it changes, until ctx ends. It first
// prints the workloads that exist at the start.
func (t *tool) followOfKind(ctx context.Context, c client.WithWatch, kind rikv1alpha1.WorkloadKind, names []string, s style, options ...client.ListOption) error {
	said := map[types.UID]string{}
	for {
		// Start the watches before the lists, so that each change after a list is an event.
		workloads, err := c.Watch(ctx, &rikv1alpha1.WorkloadList{}, options...)
		if err != nil {
			return err
		}
		instances, err := c.Watch(ctx, &rikv1alpha1.InstanceList{}, client.InNamespace(s.namespace))
		if err != nil {
			workloads.Stop()
			return err
		}
		for open := true; open && err == nil; {
			if err = t.printChanged(ctx, c, kind, names, &s, said, options); err == nil {
				open = await(ctx, workloads, instances)
			}
		}
		workloads.Stop()
		instances.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// await waits for an event of either watch. It returns false if one of them has ended.
func await(ctx context.Context, one, other watch.Interface) bool {
	select {
	case <-ctx.Done():
		return false
	case _, open := <-one.ResultChan():
		return open
	case _, open := <-other.ResultChan():
		return open
	}
}

// printChanged prints the workloads whose status differs from the one printed last.
func (t *tool) printChanged(ctx context.Context, c client.Client, kind rikv1alpha1.WorkloadKind, names []string, s *style, said map[types.UID]string, options []client.ListOption) error {
	found, missing := workloadkind.Find(ctx, c, kind, names, options...)
	if missing != nil && len(said) == 0 {
		return missing
	}
	list := &rikv1alpha1.InstanceList{}
	if err := c.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
		return err
	}
	var changed []rikv1alpha1.Workload
	for i := range found {
		status := wholeStatus(&found[i], instancesAmong(list.Items, &found[i]))
		if before, known := said[found[i].UID]; !known || before != status {
			said[found[i].UID] = status
			changed = append(changed, found[i])
		}
	}
	if len(changed) == 0 {
		return nil
	}
	if err := tabulate(t, changed, list.Items, *s); err != nil {
		return err
	}
	s.headless = true // the headings are printed already
	return nil
}
