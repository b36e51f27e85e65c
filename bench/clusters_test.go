package bench

import (
	"fmt"
	"testing"
	"time"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
)

const (
	manyClusters = 50
	// The memory is measured this often, and the smallest value counts, because it contains the
	// least garbage.
	looks        = 10
	lookInterval = 2 * time.Second
)

// BenchmarkClusters measures the resources of a kcp for each of 50 clusters: resident memory,
// heap and goroutines. The kcp imports the types of the clusters and copies objects to them,
// with its syncers in the same process. All 50 are the same Kubernetes under 50 names. For the
// kcp that is the same as 50 of them.
func BenchmarkClusters(b *testing.B) {
	begin(b)
	for range b.N {
		measureClusters(b, setting(b, "RIK_BENCH_CLUSTERS", manyClusters))
	}
	b.Logf("load at the end: %s", load())
}

func measureClusters(b *testing.B, n int) {
	b.Helper()
	below := kube.Start(b, kube.Options{})
	above := startKCP(b, "--push-mode", "--auto-publish-apis", "--split-types", "none")
	above.create(namespaceType, object(namespaceType, "Namespace", "", "team"))
	seen := observe(b, below.Rest(), configMapType, syncLabel)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("c%02d", i)
	}
	none := above.footprint()
	above.join(below, seen, names[:1])
	one := above.footprint()
	began := time.Now()
	above.join(below, seen, names[1:])
	took := time.Since(began)
	all := above.footprint()

	each := func(f func(footprint) float64) float64 { return (f(all) - f(one)) / float64(n-1) }
	b.ReportMetric(all.resident, "kcp-rss-MiB")
	b.ReportMetric(each(func(f footprint) float64 { return f.resident }), "rss-MiB/cluster")
	b.ReportMetric(each(func(f footprint) float64 { return f.heap }), "heap-MiB/cluster")
	b.ReportMetric(each(func(f footprint) float64 { return f.goroutines }), "goroutines/cluster")
	b.ReportMetric(took.Seconds(), "join-s")
	b.Logf("without a cluster %s; with one %s; with %d %s", none, one, n, all)
	b.Logf("%d clusters carried objects %.1f s after they were registered at once", n-1, took.Seconds())
}

// join registers clusters. It returns when an object has been sent to each and has arrived.
func (k *controlPlane) join(below *kube.Cluster, seen *observer, names []string) {
	k.b.Helper()
	for _, name := range names {
		k.register(name, below.Kubeconfig())
	}
	sights := make([]sample, len(names))
	for i, name := range names {
		poll(k.b, 250*time.Millisecond, name+" to carry", func() bool { return carries(k.cluster(name), "configmaps", "deployments.apps") })
		o := object(configMapType, "ConfigMap", "team", name)
		o.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: name, syncLabel: "1"})
		k.create(configMapType, o)
		sights[i] = sample{name, "1"}
	}
	seen.await("an object in every cluster", sights)
}

// footprint is the resource usage of a kcp; memory is in MiB.
type footprint struct{ resident, heap, goroutines float64 }

func (f footprint) String() string {
	return fmt.Sprintf("%.0f MiB resident, %.0f MiB heap, %.0f goroutines", f.resident, f.heap, f.goroutines)
}

func (k *controlPlane) footprint() footprint {
	k.b.Helper()
	settle(atRest / 2)
	var least footprint
	for i := range looks {
		settle(lookInterval)
		const heap, goroutines = "go_memstats_heap_alloc_bytes", "go_goroutines"
		reported := k.metricValues(heap, goroutines)
		now := footprint{resident: read(k.b, k.pid).resident, heap: reported[heap] / (1 << 20), goroutines: reported[goroutines]}
		if i == 0 {
			least = now
			continue
		}
		least = footprint{min(least.resident, now.resident), min(least.heap, now.heap), min(least.goroutines, now.goroutines)}
	}
	return least
}
