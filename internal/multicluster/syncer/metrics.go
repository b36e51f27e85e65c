package syncer

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of the syncer of one cluster.
type metrics struct {
	applies, deletes, statuses prometheus.Counter
	problems                   *prometheus.CounterVec
	delay                      prometheus.Histogram
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rik", Subsystem: "syncer", Name: name, Help: help})
	}
	return &metrics{
		applies:  counter("applies_total", "Objects made or changed in the physical cluster."),
		deletes:  counter("deletes_total", "Objects deleted in the physical cluster."),
		statuses: counter("statuses_total", "Statuses brought up to the kcp."),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "rik", Subsystem: "syncer", Name: "problems_total",
			Help: "Times that an object could not be made as the kcp wants it, by reason.",
		}, []string{"reason"}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "rik", Subsystem: "syncer", Name: "delay_seconds",
			Help:    "Time from the receipt of an upstream change until the physical cluster has accepted it.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 16), // 5 ms to 164 s
		}),
	}
}

// register registers all metrics of an engine if registry is not nil. The returned function
// unregisters them.
func (m *metrics) register(registry prometheus.Registerer, e *engine) func() {
	if registry == nil {
		return func() {}
	}
	registry = prometheus.WrapRegistererWith(prometheus.Labels{"cluster": e.identity.Cluster}, registry)
	var registered []prometheus.Collector
	for _, c := range []prometheus.Collector{m.applies, m.deletes, m.statuses, m.problems, m.delay, state{e}} {
		// if the name is taken, the metric is missing, but the syncer works
		if registry.Register(c) == nil {
			registered = append(registered, c)
		}
	}
	return func() {
		for _, c := range registered {
			registry.Unregister(c)
		}
	}
}

// state collects the current state of an engine.
type state struct{ engine *engine }

var (
	objectsMetric   = describe("objects", "Objects in the physical cluster that are carried, by type.", "resource")
	pausedMetric    = describe("deletes_paused", "Whether deletions wait for a go-ahead: 1 or 0.")
	waitingMetric   = describe("deletes_waiting", "Deletions that wait for a go-ahead.")
	reachableMetric = describe("reachable", "Whether the last request reached a side, upstream or downstream: 1 or 0.", "side")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("rik", "syncer", name), help, labels, nil)
}

// Describe implements prometheus.Collector.
func (s state) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{objectsMetric, pausedMetric, waitingMetric, reachableMetric} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (s state) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	e := s.engine
	gauge(reachableMetric, oneIf(!e.upstream.broken.Load()), "upstream")
	gauge(reachableMetric, oneIf(!e.downstream.broken.Load()), "downstream")
	e.mu.Lock()
	paused, waiting := e.breaker.isPaused(), e.breaker.number()
	objects := make(map[string]int, len(e.carriers))
	for resource, c := range e.carriers {
		objects[resource.String()] = len(c.downstream.GetStore().ListKeys())
	}
	e.mu.Unlock()
	gauge(pausedMetric, oneIf(paused))
	gauge(waitingMetric, float64(waiting))
	for resource, n := range objects {
		gauge(objectsMetric, float64(n), resource)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// pending contains the changes upstream that were not copied yet, with their times.
type pending struct {
	mu    sync.Mutex
	since map[Key]time.Time
}

// note adds a change. If the key is known, the earlier time stays.
func (p *pending) note(key Key, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, ok := p.since[key]; !ok || at.Before(before) {
		p.since[key] = at
	}
}

// take removes a change and returns its time. It returns the zero time if the key has no change.
func (p *pending) take(key Key) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.since[key]
	delete(p.since, key)
	return at
}
