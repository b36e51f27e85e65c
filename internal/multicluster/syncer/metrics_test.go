package syncer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/syncer"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// TestMetrics tests that the metrics of a syncer can be read while it runs, and not after that.
func TestMetrics(t *testing.T) {
	k, down := downstream(t)
	up := startKCP(t)
	up.register("measured", "configmaps")
	up.namespace("team")
	there := up.downNamespace("measured", "team")
	registry := prometheus.NewRegistry()
	config := up.configOf("measured", k.Rest())
	config.Metrics, config.Deletes = registry, syncer.DeleteLimit{Count: 1, Fraction: 0.01, Window: time.Hour}
	running := run(t, config)

	names := []string{"one", "two", "three"}
	for _, name := range names {
		create(t, up.objects, configMaps, configMap("team", name, "measured", map[string]string{"secret": "c4n4ry"}))
		has(t, down, configMaps, there, name, anyhow)
	}
	for _, name := range names {
		remove(t, up.objects, configMaps, "team", name)
	}
	// One deletion is allowed in an hour, so the three wait until the user confirms them.
	report := func(deletes, paused, waiting, objects float64) {
		t.Helper()
		poll.Until(t, kube.Timeout, "the metrics say what happened", func(context.Context) error {
			got, err := gather(registry)
			if err != nil {
				return err
			}
			for name, want := range map[string]float64{
				"applies_total": 3, "delay_seconds": 3, "reachable/upstream": 1, "reachable/downstream": 1,
				"deletes_total": deletes, "deletes_paused": paused, "deletes_waiting": waiting, "objects/configmaps": objects,
			} {
				if got["rik_syncer_"+name] != want {
					return fmt.Errorf("rik_syncer_%s is %v, want %v", name, got["rik_syncer_"+name], want)
				}
			}
			return nil
		})
	}
	report(0, 1, 3, 3)
	up.says("measured", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionTrue, "3 deletions are paused")
	patch(t, up.objects, clusters, "", "measured", `{"metadata":{"annotations":{"workloads.kcp.dev/allow-deletes":"3"}}}`)
	report(3, 0, 0, 0)

	if err := running.stop(); err != nil {
		t.Fatal(err)
	}
	if got, err := gather(registry); err != nil || len(got) > 0 {
		t.Errorf("after its end the syncer has the metrics %v, %v", got, err)
	}
}

// gather returns values by the metric's name and its labels without cluster. The value of a
// histogram is the number of observations.
func gather(registry *prometheus.Registry) (map[string]float64, error) {
	families, err := registry.Gather()
	if err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				if label.GetName() != "cluster" {
					name += "/" + label.GetValue()
				}
			}
			found[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return found, nil
}
