package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestScopeForgetsWhatEnded tests that Scope does not keep collectors which a syncer has
// unregistered, wrapped with the name of its cluster. The remaining ones are unregistered at the
// end.
func TestScopeForgetsWhatEnded(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s := &Scope{Registerer: registry}
	counter := func(name string) prometheus.Collector {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "h"})
		c.Inc()
		return c
	}
	east, west := prometheus.WrapRegistererWith(prometheus.Labels{"cluster": "east"}, s), prometheus.WrapRegistererWith(prometheus.Labels{"cluster": "west"}, s)
	ofEast, ofWest := counter("applies_total"), counter("applies_total")
	for range 3 { // a Cluster that is created and deleted
		east.MustRegister(ofEast)
		if !east.Unregister(ofEast) {
			t.Fatal("it was not registered")
		}
	}
	west.MustRegister(ofWest)
	if len(s.registered) != 1 {
		t.Errorf("%d collectors are kept, want that of west alone", len(s.registered))
	}
	if families, err := registry.Gather(); err != nil || len(families) != 1 || len(families[0].GetMetric()) != 1 {
		t.Errorf("Gather() = %v, %v, want one metric", families, err)
	}
	s.End()
	if families, err := registry.Gather(); err != nil || len(families) != 0 {
		t.Errorf("after its end: %v, %v", families, err)
	}
}
