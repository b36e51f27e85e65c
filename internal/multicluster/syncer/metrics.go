package syncer

import "github.com/prometheus/client_golang/prometheus"

// metrics of one cluster's syncer.
type metrics struct {
	applies, deletes, statuses prometheus.Counter
	problems                   *prometheus.CounterVec
	paused                     prometheus.Gauge
}

// newMetrics registers where a registry is given; the function undoes it.
func newMetrics(registry prometheus.Registerer, cluster string) (*metrics, func()) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rik", Subsystem: "syncer", Name: name, Help: help})
	}
	m := &metrics{
		applies:  counter("applies_total", "Objects made or changed in the physical cluster."),
		deletes:  counter("deletes_total", "Objects deleted in the physical cluster."),
		statuses: counter("statuses_total", "Statuses brought up to the kcp."),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "rik", Subsystem: "syncer", Name: "problems_total",
			Help: "Times that an object could not be made as the kcp wants it, by reason.",
		}, []string{"reason"}),
		paused: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "rik", Subsystem: "syncer", Name: "deletes_waiting",
			Help: "Deletions that wait for a go-ahead.",
		}),
	}
	if registry == nil {
		return m, func() {}
	}
	registry = prometheus.WrapRegistererWith(prometheus.Labels{"cluster": cluster}, registry)
	var registered []prometheus.Collector
	for _, c := range []prometheus.Collector{m.applies, m.deletes, m.statuses, m.problems, m.paused} {
		if registry.Register(c) == nil { // a name that is taken costs a metric, not the syncer
			registered = append(registered, c)
		}
	}
	return m, func() {
		for _, c := range registered {
			registry.Unregister(c)
		}
	}
}
