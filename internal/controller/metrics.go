package controller

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/scheduling"
	"rik.dev/rik/internal/controller/store"
)

// metrics are the metrics of a controller over all its terms.
type metrics struct {
	writes     *prometheus.CounterVec
	scheduling *scheduling.Metrics
	current    atomic.Pointer[term]
	gauges     []prometheus.Collector
}

func newMetrics() *metrics {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "rik", Subsystem: "controller", Name: "instance_writes_total",
			Help: "Writes of Instances, by the kind of write.",
		}, []string{"verb"}),
		scheduling: scheduling.NewMetrics(),
	}
	gauge := func(name, help string, value func(*term) float64) {
		m.gauges = append(m.gauges, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rik", Subsystem: "controller", Name: name, Help: help,
		}, func() float64 {
			if t := m.current.Load(); t != nil {
				return value(t)
			}
			return 0
		}))
	}
	gauge("term", "Term of this controller while it is the active one, otherwise 0.", func(t *term) float64 { return float64(t.number) })
	gauge("instances_waiting", "Instances that wait to be reconciled.", func(t *term) float64 { return float64(t.instances.Waiting()) })
	gauge("workloads_waiting", "Workloads that wait to be reconciled.", func(t *term) float64 { return float64(t.workloads.Waiting()) })
	return m
}

func (m *metrics) active(t *term) { m.current.Store(t) }

func (m *metrics) register(r prometheus.Registerer) error {
	problems := []error{r.Register(m.writes)}
	for _, c := range append(m.scheduling.Collectors(), m.gauges...) {
		problems = append(problems, r.Register(c))
	}
	return errors.Join(problems...)
}

// counted counts the writes of Instances by verb.
type counted struct {
	inner  store.Instances
	writes *prometheus.CounterVec
}

func (c counted) Create(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	c.writes.WithLabelValues("create").Inc()
	return c.inner.Create(ctx, in)
}

func (c counted) Bind(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	c.writes.WithLabelValues("bind").Inc()
	return c.inner.Bind(ctx, in)
}

func (c counted) Update(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	c.writes.WithLabelValues("update").Inc()
	return c.inner.Update(ctx, in)
}

func (c counted) UpdateStatus(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	c.writes.WithLabelValues("status").Inc()
	return c.inner.UpdateStatus(ctx, in)
}

func (c counted) Delete(ctx context.Context, namespace, name string, uid types.UID, grace *int64) error {
	c.writes.WithLabelValues("delete").Inc()
	return c.inner.Delete(ctx, namespace, name, uid, grace)
}
