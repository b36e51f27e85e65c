package scheduling

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts the messages between controller and scheduler.
type Metrics struct {
	sessions, sent, received prometheus.Counter
}

// NewMetrics creates the counters. Collectors returns them for registration.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "rik", Subsystem: "controller", Name: name, Help: help,
		})
	}
	return &Metrics{
		sessions: counter("scheduler_sessions_total", "Streams opened to the scheduler."),
		sent:     counter("scheduler_messages_sent_total", "Messages sent to the scheduler."),
		received: counter("scheduler_messages_received_total", "Messages received from the scheduler."),
	}
}

// Collectors returns the counters for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.sessions, m.sent, m.received}
}
