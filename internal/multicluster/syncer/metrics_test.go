package syncer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rik.dev/rik/internal/multicluster/syncer"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// TestMetrics: what a syncer did and how it is can be read while it runs, and no longer.
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
	poll.Until(t, kube.Patience, "the metrics say what happened", func(context.Context) error {
		got, err := gather(registry)
		if err != nil {
			return err
		}
		for name, want := range map[string]float64{
			"applies_total": 3, "deletes_total": 1, "delay_seconds": 4, "deletes_paused": 1, "deletes_waiting": 2,
			"objects/configmaps": 2, "reachable/upstream": 1, "reachable/downstream": 1,
		} {
			if got["rik_syncer_"+name] != want {
				return fmt.Errorf("rik_syncer_%s is %v, want %v", name, got["rik_syncer_"+name], want)
			}
		}
		return nil
	})

	if err := running.stop(); err != nil {
		t.Fatal(err)
	}
	if got, err := gather(registry); err != nil || len(got) > 0 {
		t.Errorf("after its end the syncer has the metrics %v, %v", got, err)
	}
}

// gather gives values by the metric's name and its labels but the cluster's; of a
// histogram the number of observations.
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
