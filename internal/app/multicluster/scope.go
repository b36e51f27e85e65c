package multicluster

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// scope registers metrics for as long as what they measure runs.
type scope struct {
	prometheus.Registerer

	mu sync.Mutex
	// registered are those that end has to take away, by what they describe. It is
	// guarded by mu.
	registered map[string]prometheus.Collector
}

// Register implements prometheus.Registerer.
func (s *scope) Register(c prometheus.Collector) error {
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
func (s *scope) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := s.Register(c); err != nil {
			panic(err)
		}
	}
}

// Unregister implements prometheus.Registerer. What has ended is forgotten: the syncer
// of a Cluster that is gone would be kept in memory by its metrics otherwise.
func (s *scope) Unregister(c prometheus.Collector) bool {
	s.mu.Lock()
	delete(s.registered, described(c))
	s.mu.Unlock()
	return s.Registerer.Unregister(c)
}

func (s *scope) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.registered {
		s.Registerer.Unregister(c)
	}
	s.registered = nil
}

// described tells collectors apart as a registry does, by what they describe: one that is
// wrapped to bear a label is another value each time.
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
