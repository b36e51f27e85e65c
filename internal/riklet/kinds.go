package riklet

import (
	"context"
	"slices"
	"sync"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// certain are the kinds that the node runs without having found out.
func (r *Riklet) certain() []rikv1alpha1.WorkloadKind {
	var kinds []rikv1alpha1.WorkloadKind
	for _, d := range r.cfg.Drivers {
		for _, kind := range d.Kinds {
			if d.Probes[kind] == nil {
				kinds = append(kinds, kind)
			}
		}
	}
	slices.Sort(kinds)
	return kinds
}

// probe finds out about the others, all at once, and says so as it learns. What the
// node cannot run is no failure of the node.
func (r *Riklet) probe(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	for _, d := range r.cfg.Drivers {
		for kind, able := range d.Probes {
			group.Go(func() {
				if err := able(ctx); err == nil {
					r.offer(kind)
				} else if ctx.Err() == nil {
					r.cfg.Logger.Warn("this node does not run a kind", "kind", kind, "err", err)
				}
			})
		}
	}
}

// offer registers the node again, with one more kind.
func (r *Riklet) offer(kind rikv1alpha1.WorkloadKind) {
	r.amend(func(s *rikv1alpha1.NodeStatus) {
		s.Info.Kinds = append(s.Info.Kinds, kind)
		slices.Sort(s.Info.Kinds)
	})
	r.cfg.Logger.Info("node runs a further kind", "kind", kind)
	r.scheduler.Reconnect()
}
