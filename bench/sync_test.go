package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
)

const (
	// syncRate is the number of objects written per second, whether or not the earlier ones have
	// arrived.
	syncRate = 100
	// syncRound is the number of objects that one side writes before the other side's turn.
	syncRound  = 250
	syncRounds = 4
	// syncMany is the number of objects that syncWriters write as fast as possible.
	syncMany    = 1000
	syncWriters = 32

	syncLabel   = "bench.rik.dev/version"
	syncCluster = "east"
)

// BenchmarkSync measures the time from the write of an object in a kcp until it is in the
// physical cluster, a real Kubernetes API server. It measures this at a steady rate, and also
// measures the maximum number of objects per second. In turn with it, in the same run, a bare
// client writes the same object to the one and then to the other.
func BenchmarkSync(b *testing.B) {
	begin(b)
	below := kube.Start(b, kube.Options{})
	above := startKCP(b, "--push-mode", "--auto-publish-apis", "--split-types", "none")
	above.register(syncCluster, below.Kubeconfig())
	poll(b, 100*time.Millisecond, "the cluster to carry", func() bool {
		return carries(above.cluster(syncCluster), "configmaps", "deployments.apps")
	})
	// Kubernetes' own handler delays an object by 2 s if it is created within 2 s of its CRD's
	// establishment.
	settle(5 * time.Second)
	for _, kind := range []carriedKind{
		{"configmaps", configMapType, "ConfigMap", map[string]any{"data": map[string]any{"settings": "a = 1\nb = 2\n"}}},
		{"deployments", deploymentType, "Deployment", map[string]any{"spec": deploymentSpec()}},
	} {
		b.Run(kind.name, func(b *testing.B) {
			for range b.N {
				measureSync(b, above, below, kind)
			}
		})
	}
	b.Logf("load at the end: %s", load())
}

// carriedKind is a type with the content of its objects.
type carriedKind struct {
	name     string
	resource schema.GroupVersionResource
	kind     string
	content  map[string]any
}

func deploymentSpec() map[string]any {
	labels := map[string]any{"app": "web"}
	return map[string]any{
		"replicas": int64(2), "selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": map[string]any{
			"containers": []any{map[string]any{
				"name": "web", "image": "registry.example/web:1",
				"ports":     []any{map[string]any{"containerPort": int64(80)}},
				"env":       []any{map[string]any{"name": "A", "value": "1"}},
				"resources": map[string]any{"requests": map[string]any{"cpu": "1", "memory": "64Mi"}},
			}},
		}},
	}
}

// way brings objects to the physical cluster.
type way struct {
	name string
	// write returns when the writer has nothing more to do.
	write func(ctx context.Context, name, version string) error

	created, changed []time.Duration
	perSecond        float64
	// slowest is the rate at which objects were written in the slowest round.
	slowest float64
}

func measureSync(b *testing.B, above *controlPlane, below *kube.Cluster, kind carriedKind) {
	b.Helper()
	seen := observe(b, below.Rest(), kind.resource, syncLabel)
	down := dynamic.NewForConfigOrDie(below.Rest())
	synced, bare := "synced-"+kind.name, "bare-"+kind.name
	for _, name := range []string{synced, bare} {
		above.create(namespaceType, object(namespaceType, "Namespace", "", name))
	}
	if _, err := down.Resource(namespaceType).Create(b.Context(), object(namespaceType, "Namespace", "", bare), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	ways := []*way{
		{name: "rik", slowest: syncRate, write: func(ctx context.Context, name, version string) error {
			return kind.writeUp(ctx, above.objects, synced, name, version, map[string]string{workloadv1alpha1.ClusterLabel: syncCluster})
		}},
		{name: "bare", slowest: syncRate, write: func(ctx context.Context, name, version string) error {
			if err := kind.writeUp(ctx, above.objects, bare, name, version, nil); err != nil {
				return err
			}
			return kind.writeDown(ctx, down, bare, name, version)
		}},
	}
	// The first objects create the namespace in the cluster, and fill caches.
	for _, w := range ways {
		w.steady(b, seen, kind.name+"-warm", "1", 5)
	}
	for round := range syncRounds {
		for _, w := range ways {
			prefix := fmt.Sprintf("%s-%d", kind.name, round)
			w.created = append(w.created, w.steady(b, seen, prefix, "1", syncRound)...)
			w.changed = append(w.changed, w.steady(b, seen, prefix, "2", syncRound)...)
		}
	}
	used := read(b, above.pid).cpu
	for _, w := range ways {
		w.saturate(b, seen, kind.name)
		now := read(b, above.pid).cpu
		b.Logf("%s: %d %s at once: %.0f/s, the kcp's CPU %.2f ms each; at the steady rate never below %.0f/s",
			w.name, syncMany, kind.name, w.perSecond, milliseconds(now-used)/syncMany, w.slowest)
		used = now
	}
	for _, w := range ways {
		b.ReportMetric(milliseconds(percentile(w.created, 50)), w.name+"-create-p50-ms")
		b.ReportMetric(milliseconds(percentile(w.created, 99)), w.name+"-create-p99-ms")
		b.ReportMetric(milliseconds(percentile(w.changed, 50)), w.name+"-change-p50-ms")
		b.ReportMetric(milliseconds(percentile(w.changed, 99)), w.name+"-change-p99-ms")
		b.ReportMetric(w.perSecond, w.name+"-objects/s")
	}
}

// steady writes objects at the rate, and returns how long each took to arrive.
func (w *way) steady(b *testing.B, seen *observer, prefix, version string, n int) []time.Duration {
	b.Helper()
	sights, began := make([]sample, n), make([]time.Time, n)
	writes, ctx := errgroup.WithContext(b.Context())
	tick := time.NewTicker(time.Second / syncRate)
	defer tick.Stop()
	begun := time.Now()
	for i := range n {
		<-tick.C
		name := fmt.Sprintf("%s-%s-%d", w.name, prefix, i)
		sights[i], began[i] = sample{name, version}, time.Now()
		writes.Go(func() error { return w.write(ctx, name, version) })
	}
	rate := float64(n) / time.Since(begun).Seconds()
	if err := writes.Wait(); err != nil {
		b.Fatal(err)
	}
	took := make([]time.Duration, n)
	for i, at := range seen.await(w.name+"'s objects", sights) {
		took[i] = at.Sub(began[i])
	}
	w.slowest = min(w.slowest, rate)
	return took
}

// saturate writes many objects as fast as possible, and measures the time until the last one
// arrived.
func (w *way) saturate(b *testing.B, seen *observer, prefix string) {
	b.Helper()
	sights := make([]sample, syncMany)
	writes, ctx := errgroup.WithContext(b.Context())
	writes.SetLimit(syncWriters)
	began := time.Now()
	for i := range sights {
		sights[i] = sample{fmt.Sprintf("%s-%s-many-%d", w.name, prefix, i), "1"}
		writes.Go(func() error { return w.write(ctx, sights[i].name, "1") })
	}
	if err := writes.Wait(); err != nil {
		b.Fatal(err)
	}
	last := began
	for _, at := range seen.await(w.name+"'s many objects", sights) {
		if at.After(last) {
			last = at
		}
	}
	w.perSecond = syncMany / last.Sub(began).Seconds()
}

// writeUp creates an object of the first version, and changes it to another.
func (k carriedKind) writeUp(ctx context.Context, client dynamic.Interface, namespace, name, version string, labels map[string]string) error {
	objects := client.Resource(k.resource).Namespace(namespace)
	if version == "1" {
		o := k.object(namespace, name, version)
		o.SetLabels(merged(o.GetLabels(), labels))
		_, err := objects.Create(ctx, o, metav1.CreateOptions{})
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{syncLabel: version}}})
	if err != nil {
		return err
	}
	_, err = objects.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// writeDown applies an object as a syncer does.
func (k carriedKind) writeDown(ctx context.Context, client dynamic.Interface, namespace, name, version string) error {
	_, err := client.Resource(k.resource).Namespace(namespace).Apply(ctx, name, k.object(namespace, name, version), metav1.ApplyOptions{FieldManager: "bench", Force: true})
	return err
}

func (k carriedKind) object(namespace, name, version string) *unstructured.Unstructured {
	o := object(k.resource, k.kind, namespace, name)
	for field, value := range (&unstructured.Unstructured{Object: k.content}).DeepCopy().Object {
		o.Object[field] = value
	}
	o.SetLabels(map[string]string{syncLabel: version})
	return o
}

func merged(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, labels := range all {
		for name, value := range labels {
			out[name] = value
		}
	}
	return out
}
