package multicluster

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// scope registers metrics for as long as what they measure runs.
type scope struct {
	prometheus.Registerer

	mu sync.Mutex
	// registered are those that end has to take away.
	registered []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (s *scope) Register(c prometheus.Collector) error {
	if err := s.Registerer.Register(c); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered = append(s.registered, c)
	return nil
}

// MustRegister implements prometheus.Registerer.
func (s *scope) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := s.Register(c); err != nil {
			panic(err)
		}
	}
}

func (s *scope) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.registered {
		s.Unregister(c)
	}
	s.registered = nil
}
