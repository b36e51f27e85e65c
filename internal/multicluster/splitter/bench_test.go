package splitter

import (
	"fmt"
	"testing"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// BenchmarkSplit decides on a root that is at rest over 100 clusters, and on a root that has just
// lost one of them.
func BenchmarkSplit(b *testing.B) {
	for _, strategy := range []workloadv1alpha1.Strategy{workloadv1alpha1.StrategyEven, workloadv1alpha1.StrategySpread} {
		p := policy{Strategy: strategy}
		if strategy == workloadv1alpha1.StrategySpread {
			p.TopologyKey = "region"
		}
		w := newClusterSim(b, p, 1000)
		for i := range 100 {
			c := readyCluster(fmt.Sprintf("cluster-%02d", i))
			c.Labels = map[string]string{"region": fmt.Sprint(i % 7)}
			w.Clusters = append(w.Clusters, c)
		}
		w.arrive(Split(w.State))
		b.Run(string(strategy)+"/at rest", func(b *testing.B) {
			for b.Loop() {
				if r := Split(w.State); len(r.Changes) > 0 {
					b.Fatal(r.Changes)
				}
			}
		})
		w.Clusters[0].Ready = false
		b.Run(string(strategy)+"/one lost", func(b *testing.B) {
			for b.Loop() {
				if r := Split(w.State); len(r.Changes) < 5 {
					b.Fatal(r.Changes)
				}
			}
		})
	}
}
