package controller

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rik.dev/rik/internal/multicluster/splitter"
)

// metrics are the metrics of a controller.
type metrics struct {
	passes   prometheus.Counter
	failures prometheus.Counter
	seconds  prometheus.Histogram
	changes  *prometheus.CounterVec
	follows  prometheus.Counter
	gauges   []prometheus.Collector

	mu sync.Mutex
	// unplaced is how many replicas of each root no cluster accepts. paused contains the roots
	// whose rollouts wait for the user to fix a problem. mu guards both.
	unplaced map[rootKey]int32
	paused   map[rootKey]bool
}

func newMetrics(waiting func() int) *metrics {
	options := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "rik", Subsystem: "splitter", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(options(name, help)))
	}
	m := &metrics{
		passes:   counter("passes_total", "Passes over roots."),
		failures: counter("pass_failures_total", "Passes over roots that failed and are made again."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "rik", Subsystem: "splitter", Name: "pass_seconds", Help: "How long a pass over a root took, its writes included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}),
		changes:  prometheus.NewCounterVec(prometheus.CounterOpts(options("changes_total", "Writes of leaves by action.")), []string{"action"}),
		follows:  counter("follow_writes_total", "Writes of the targets of what leaves need."),
		unplaced: map[rootKey]int32{}, paused: map[rootKey]bool{},
	}
	gauge := func(name, help string, value func() float64) {
		m.gauges = append(m.gauges, prometheus.NewGaugeFunc(prometheus.GaugeOpts(options(name, help)), value))
	}
	gauge("roots_waiting", "Roots that wait for a pass.", func() float64 { return float64(waiting()) })
	gauge("roots", "Roots that are divided.", func() float64 { return m.sum(func() int { return len(m.unplaced) }) })
	gauge("unplaced", "Replicas, and whole roots, that no cluster takes.", func() float64 {
		return m.sum(func() int {
			var n int
			for _, unplaced := range m.unplaced {
				n += int(unplaced)
			}
			return n
		})
	})
	gauge("rollouts_paused", "Roots whose new spec has failed in a cluster.", func() float64 { return m.sum(func() int { return len(m.paused) }) })
	return m
}

func (m *metrics) sum(of func() int) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return float64(of())
}

// pass counts a pass.
func (m *metrics) pass(took time.Duration, failed bool) {
	m.passes.Inc()
	m.seconds.Observe(took.Seconds())
	if failed {
		m.failures.Inc()
	}
}

func (m *metrics) changed(action splitter.Action) { m.changes.WithLabelValues(string(action)).Inc() }

// root records the state of a root.
func (m *metrics) root(key rootKey, unplaced int32, paused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unplaced[key] = unplaced
	if delete(m.paused, key); paused {
		m.paused[key] = true
	}
}

func (m *metrics) forget(key rootKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.unplaced, key)
	delete(m.paused, key)
}

func (m *metrics) forgetType(resource schema.GroupResource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.unplaced, func(key rootKey, _ int32) bool { return key.GroupResource == resource })
	maps.DeleteFunc(m.paused, func(key rootKey, _ bool) bool { return key.GroupResource == resource })
}

func (m *metrics) register(r prometheus.Registerer) error {
	problems := []error{r.Register(m.passes), r.Register(m.failures), r.Register(m.seconds), r.Register(m.changes), r.Register(m.follows)}
	for _, gauge := range m.gauges {
		problems = append(problems, r.Register(gauge))
	}
	return errors.Join(problems...)
}
