package cluster

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// metrics are the metrics of the cluster controller, with one sample for each Cluster.
type metrics struct {
	ready   *prometheus.Desc
	present func() map[string]bool
}

func newMetrics(present func() map[string]bool) *metrics {
	return &metrics{
		ready:   prometheus.NewDesc("rik_multicluster_cluster_ready", "Whether a Cluster is ready: 1 or 0.", []string{"cluster"}, nil),
		present: present,
	}
}

func (m *metrics) register(r prometheus.Registerer) error { return r.Register(m) }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) { out <- m.ready }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	for name, ready := range m.present() {
		value := 0.0
		if ready {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(m.ready, prometheus.GaugeValue, value, name)
	}
}

// readiness returns all Clusters, and whether each is ready.
func (c *Controller) readiness() map[string]bool {
	list := &workloadv1alpha1.ClusterList{}
	if err := c.cache.List(context.Background(), list); err != nil {
		return nil // the cache has not started yet, or has ended
	}
	ready := map[string]bool{}
	for i := range list.Items {
		ready[list.Items[i].Name] = meta.IsStatusConditionTrue(list.Items[i].Status.Conditions, workloadv1alpha1.ConditionReady)
	}
	return ready
}
