package scheduler

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count the scheduler's actions. They also work without a registry.
type metrics struct {
	proposals    prometheus.Counter
	unplaced     prometheus.Counter
	displaced    prometheus.Counter
	observations prometheus.Counter
	dispatched   prometheus.Counter
	rounds       prometheus.Histogram
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rik", Subsystem: "scheduler", Name: name, Help: help})
	}
	return &metrics{
		proposals:    counter("bindings_proposed_total", "Bindings proposed to the controller."),
		unplaced:     counter("unplaced_told_total", "Explanations sent about instances without a suitable node."),
		displaced:    counter("displaced_total", "Instances preempted by instances of higher priority."),
		observations: counter("observations_forwarded_total", "Observations sent to the controller."),
		dispatched:   counter("orders_dispatched_total", "Orders to run or stop instances sent to nodes."),
		rounds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "rik", Subsystem: "scheduler", Name: "round_seconds", Help: "Duration of a placement round.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 8),
		}),
	}
}

// register registers the metrics, and gauges over the scheduler's state.
func (s *Scheduler) register(r prometheus.Registerer) error {
	gauge := func(name, help string, read func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rik", Subsystem: "scheduler", Name: name, Help: help,
		}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(read())
		})
	}
	m := s.metrics
	collectors := []prometheus.Collector{
		m.proposals, m.unplaced, m.displaced, m.observations, m.dispatched, m.rounds,
		gauge("nodes_ready", "Nodes that accept instances.", func() int { return s.inventory.Stats().ReadyNodes }),
		gauge("instances_pending", "Instances that wait for a node.", func() int { return s.inventory.Stats().Pending }),
		gauge("instances_bound", "Instances that hold resources of a node.", func() int { return s.inventory.Stats().Bound }),
	}
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}
