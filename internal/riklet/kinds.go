package riklet

import (
	"context"
	"slices"
	"sync"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pause"
)

// unprobedKinds returns the kinds that the node runs without a probe.
func (r *Riklet) unprobedKinds() []rikv1alpha1.WorkloadKind {
	var kinds []rikv1alpha1.WorkloadKind
	for _, kind := range r.cfg.Driver.Kinds {
		if r.cfg.Driver.Probes[kind] == nil {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// probe runs the probes of the other kinds in parallel, and registers each kind that succeeds. A
// kind that the node cannot run is no failure, and the probe is repeated later.
func (r *Riklet) probe(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	for kind, probe := range r.cfg.Driver.Probes {
		group.Go(func() {
			failed := func(err error, pause time.Duration) {
				r.cfg.Logger.Warn("this node cannot run a kind of workload", "kind", kind, "err", err, "again", pause)
			}
			if retryProbe(ctx, probe, failed) {
				r.addKind(kind)
			}
		})
	}
}

// The pauses between two probes of a kind. A probe may boot a guest. The first retry comes soon,
// because the machine may only have been busy. Later retries are rare.
const (
	firstProbePause = 2 * time.Minute
	lastProbePause  = time.Hour
)

// retryProbe repeats a probe until it succeeds or ctx ends.
func retryProbe(ctx context.Context, probe func(context.Context) error, failed func(err error, pause time.Duration)) bool {
	for next := firstProbePause; ; next = min(2*next, lastProbePause) {
		err := probe(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		failed(err, next)
		if !pause.For(ctx, next) {
			return false
		}
	}
}

// addKind registers the node again, with one more kind.
func (r *Riklet) addKind(kind rikv1alpha1.WorkloadKind) {
	r.updateFacts(func(s *rikv1alpha1.NodeStatus) {
		s.Info.Kinds = append(s.Info.Kinds, kind)
		slices.Sort(s.Info.Kinds)
	})
	r.cfg.Logger.Info("this node can now run a further kind of workload", "kind", kind)
	r.scheduler.Reconnect()
}
