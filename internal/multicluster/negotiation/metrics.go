package negotiation

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"rik.dev/rik/internal/multicluster/negotiation/plan"
)

// metrics are the metrics of a controller.
type metrics struct {
	writes  *prometheus.CounterVec
	refused prometheus.Counter
}

func newMetrics() *metrics {
	options := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "rik", Subsystem: "negotiation", Name: name, Help: help}
	}
	return &metrics{
		writes:  prometheus.NewCounterVec(options("crd_writes_total", "Writes of CRDs by action."), []string{"action"}),
		refused: prometheus.NewCounter(options("crd_refusals_total", "CRDs that the API server refused.")),
	}
}

func (m *metrics) wrote(action plan.CRDAction) { m.writes.WithLabelValues(string(action)).Inc() }

func (m *metrics) register(r prometheus.Registerer, waiting func() int) error {
	return errors.Join(r.Register(m.writes), r.Register(m.refused),
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "rik", Subsystem: "negotiation", Name: "resources_waiting", Help: "Resources that wait for a pass.",
		}, func() float64 { return float64(waiting()) })))
}
