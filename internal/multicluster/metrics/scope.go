package metrics

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Scope registers metrics for as long as the measured component runs.
type Scope struct {
	prometheus.Registerer

	mu sync.Mutex
	// registered are the collectors that End must unregister, by their descriptions. mu guards
	// it.
	registered map[string]prometheus.Collector
}

// Register implements prometheus.Registerer.
func (s *Scope) Register(c prometheus.Collector) error {
	if err := s.Registerer.Register(c); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.registered == nil {
		s.registered = map[string]prometheus.Collector{}
	}
	s.registered[described(c)] = c
	return nil
}

// MustRegister implements prometheus.Registerer.
func (s *Scope) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := s.Register(c); err != nil {
			panic(err)
		}
	}
}

// Unregister implements prometheus.Registerer. It removes its reference to the collector.
// Otherwise the metrics of a removed Cluster would keep its syncer in memory.
func (s *Scope) Unregister(c prometheus.Collector) bool {
	s.mu.Lock()
	delete(s.registered, described(c))
	s.mu.Unlock()
	return s.Registerer.Unregister(c)
}

// End unregisters all metrics that are still registered.
func (s *Scope) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.registered {
		s.Registerer.Unregister(c)
	}
	s.registered = nil
}

// described identifies a collector by its descriptions, as a registry does. A collector that is
// wrapped with a label is a different value each time.
func described(c prometheus.Collector) string {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	var all []string
	for d := range descs {
		all = append(all, d.String())
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}
