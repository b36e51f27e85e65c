package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/rikcluster"
)

const (
	splitManyClusters = 100
	splitManyRoots    = 10_000
	// splitManySpaces is the number of namespaces of the roots.
	splitManySpaces = 10
	// splitManyReplicas is the number of replicas of a root, and of its leaves, each in another
	// cluster.
	splitManyReplicas = 1
	// splitManyScaled is the number of roots that are scaled, one after the other.
	splitManyScaled = 200

	splitMetrics = "127.0.0.1:9191"
)

// BenchmarkSplitMany measures the resources of a splitter with 100 clusters and 10,000 roots, in
// a separate process: resident memory, heap and goroutines. For each scaling of a root it
// measures the CPU time of the splitter and of the kcp, and the writes. There is one real
// Kubernetes, whose types are imported. The benchmark writes the status of the 100 Clusters, and
// no syncer runs, so every write of a Deployment except the first is the splitter's. A root has
// one leaf, and two after scaling.
func BenchmarkSplitMany(b *testing.B) {
	begin(b)
	for range b.N {
		measureSplitMany(b, setting(b, "RIK_BENCH_CLUSTERS", splitManyClusters), setting(b, "RIK_BENCH_ROOTS", splitManyRoots))
	}
	b.Logf("load at the end: %s", load())
}

func measureSplitMany(b *testing.B, clusters, roots int) {
	b.Helper()
	dir := b.TempDir()
	above := startKCP(b, "--run-controllers=false")
	above.importDeployments(dir)
	for i := range clusters {
		above.setReady(fmt.Sprintf("c%03d", i))
	}
	leaves := countLeaves(b, above)
	s := &splitProcess{b: b, above: above}
	s.pid, _ = start(b, filepath.Join(dir, "splitter.log"), filepath.Join(rikcluster.Bin(b), "deployment-splitter"),
		"--kubeconfig", above.kubeconfig, "--metrics-address", splitMetrics)
	poll(b, often, "the splitter to serve metrics", func() bool { _, err := s.metrics(); return err == nil })
	none := s.footprint()
	began := time.Now()
	s.makeRoots(roots)
	made := time.Since(began)
	poll(b, 100*time.Millisecond, "the leaves", func() bool { return leaves.count() >= roots*splitManyReplicas })
	took, cpu := time.Since(began), read(b, s.pid).cpu
	all := s.footprint()
	b.Logf("%d roots were made in %.1f s, and had their %d leaves after %.1f s; the splitter's CPU %.2f ms a root",
		roots, made.Seconds(), leaves.count(), took.Seconds(), milliseconds(cpu)/float64(roots))
	b.Logf("without a root %s; with %d %s", none, roots, all)
	b.ReportMetric(all.resident, "splitter-rss-MiB")
	b.ReportMetric(all.heap, "splitter-heap-MiB")
	b.ReportMetric(all.goroutines, "goroutines")
	b.ReportMetric((all.heap-none.heap)*1024/float64(roots), "heap-KiB/root")
	s.measureScaling(leaves, min(splitManyScaled, roots))
}

// importDeployments makes the kcp serve Deployments by importing them from a cluster, and then
// leaves it without controllers.
func (k *controlPlane) importDeployments(dir string) {
	k.b.Helper()
	below := kube.Start(k.b, kube.Options{})
	_, stop := start(k.b, filepath.Join(dir, "cluster-controller.log"), filepath.Join(rikcluster.Bin(k.b), "cluster-controller"),
		"--kubeconfig", k.kubeconfig, "--auto-publish-apis", "--split-types", "none")
	c := object(clusterType, "Cluster", "", "c000")
	c.Object["spec"] = map[string]any{"kubeconfig": string(below.Kubeconfig()), "syncMode": string(workloadv1alpha1.SyncNone)}
	k.create(clusterType, c)
	poll(k.b, 100*time.Millisecond, "Deployments to be served", func() bool {
		_, err := k.objects.Resource(deploymentType).Namespace("default").List(k.b.Context(), metav1.ListOptions{})
		return err == nil
	})
	stop()
}

// setReady sets the status of a Cluster: it is ready and syncs Deployments.
func (k *controlPlane) setReady(name string) {
	k.b.Helper()
	if name != "c000" { // that one exists
		c := object(clusterType, "Cluster", "", name)
		c.Object["spec"] = map[string]any{"syncMode": string(workloadv1alpha1.SyncNone)}
		k.create(clusterType, c)
	}
	now := metav1.Now()
	var conditions []metav1.Condition
	for _, condition := range []string{workloadv1alpha1.ConditionReady, workloadv1alpha1.ConditionSyncerReady, workloadv1alpha1.ConditionHeartbeatHealthy} {
		conditions = append(conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: "Written", LastTransitionTime: now})
	}
	patch, err := json.Marshal(map[string]any{"status": workloadv1alpha1.ClusterStatus{Conditions: conditions, LastHeartbeatTime: &now, SyncedResources: []string{"deployments.apps"}}})
	if err != nil {
		k.b.Fatal(err)
	}
	if _, err := k.objects.Resource(clusterType).Patch(k.b.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		k.b.Fatal(err)
	}
}

// leafCount counts the existing leaves, and the writes of root statuses.
type leafCount struct {
	mu     sync.Mutex
	leaves map[types.UID]bool
}

func (l *leafCount) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.leaves)
}

func countLeaves(b *testing.B, above *controlPlane) *leafCount {
	b.Helper()
	l := &leafCount{leaves: map[types.UID]bool{}}
	informer := metadatainformer.NewFilteredMetadataInformer(metadata.NewForConfigOrDie(above.config), deploymentType, metav1.NamespaceAll, 0, cache.Indexers{},
		func(options *metav1.ListOptions) { options.LabelSelector = workloadv1alpha1.OwnedByLabel }).Informer()
	runInformer(b, informer, cache.ResourceEventHandlerFuncs{AddFunc: func(seen any) {
		if o, ok := seen.(*metav1.PartialObjectMetadata); ok {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.leaves[o.UID] = true
		}
	}})
	return l
}

// splitProcess is a splitter in a separate process.
type splitProcess struct {
	b     *testing.B
	pid   int
	above *controlPlane
}

// metrics returns the metrics without labels.
func (s *splitProcess) metrics() (map[string]float64, error) {
	request, err := http.NewRequestWithContext(s.b.Context(), http.MethodGet, "http://"+splitMetrics+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for line := range strings.Lines(string(raw)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			found[name] = n
		}
	}
	return found, nil
}

func (s *splitProcess) footprint() footprint {
	s.b.Helper()
	settle(atRest / 4)
	var least footprint
	for i := range looks / 2 {
		settle(lookInterval)
		reported, err := s.metrics()
		if err != nil {
			s.b.Fatal(err)
		}
		now := footprint{resident: read(s.b, s.pid).resident, heap: reported["go_memstats_heap_alloc_bytes"] / (1 << 20), goroutines: reported["go_goroutines"]}
		if i == 0 {
			least = now
			continue
		}
		least = footprint{min(least.resident, now.resident), min(least.heap, now.heap), min(least.goroutines, now.goroutines)}
	}
	return least
}

func (s *splitProcess) makeRoots(n int) {
	s.b.Helper()
	for i := range splitManySpaces {
		s.above.create(namespaceType, object(namespaceType, "Namespace", "", fmt.Sprintf("team-%d", i)))
	}
	writes, ctx := errgroup.WithContext(s.b.Context())
	writes.SetLimit(syncWriters)
	for i := range n {
		writes.Go(func() error {
			o := scaledDeployment(fmt.Sprintf("team-%d", i%splitManySpaces), fmt.Sprintf("root-%d", i), splitManyReplicas)
			_, err := s.above.objects.Resource(deploymentType).Namespace(o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{})
			return err
		})
	}
	if err := writes.Wait(); err != nil {
		s.b.Fatal(err)
	}
}

// measureScaling scales some roots, one after the other, by one replica, which adds a leaf.
func (s *splitProcess) measureScaling(leaves *leafCount, n int) {
	s.b.Helper()
	wait := atRest / 4
	before := s.above.writes(deploymentType.Resource)
	began := s.usage()
	start := time.Now()
	for i := range n {
		want := leaves.count() + 1
		if err := scaleTo(s.b.Context(), s.above.objects, fmt.Sprintf("team-%d", i%splitManySpaces), fmt.Sprintf("root-%d", i), splitManyReplicas+1); err != nil {
			s.b.Fatal(err)
		}
		poll(s.b, time.Millisecond, "another leaf", func() bool { return leaves.count() >= want })
	}
	took := time.Since(start)
	settle(wait) // for later writes
	used := s.usage().minus(began)
	after := s.above.writes(deploymentType.Resource)
	var all float64
	for kind, number := range after {
		if number -= before[kind]; number > 0 {
			all += number
			s.b.Logf("%s: %.2f a scaling", kind, number/float64(n))
		}
	}
	s.b.ReportMetric(milliseconds(used.splitter)/float64(n), "splitter-cpu-ms/scaling")
	s.b.ReportMetric(milliseconds(used.kcp)/float64(n), "kcp-cpu-ms/scaling")
	s.b.ReportMetric(all/float64(n)-1, "writes/scaling")
	s.b.Logf("%d roots were scaled in %.1f s, one after the other", n, took.Seconds())
}

// usage is the CPU time used so far.
type usage struct{ splitter, kcp time.Duration }

func (u usage) minus(v usage) usage { return usage{u.splitter - v.splitter, u.kcp - v.kcp} }

func (s *splitProcess) usage() usage {
	s.b.Helper()
	return usage{read(s.b, s.pid).cpu, read(s.b, s.above.pid).cpu}
}

var requestLabel = regexp.MustCompile(`(\w+)="([^"]*)"`)

// writes returns the number of writes of a type in the kcp, by verb and subresource, from its
// metrics.
func (k *controlPlane) writes(resource string) map[string]float64 {
	k.b.Helper()
	found := map[string]float64{}
	for line := range strings.Lines(k.metrics()) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "apiserver_request_total{") {
			continue
		}
		labels := map[string]string{}
		for _, label := range requestLabel.FindAllStringSubmatch(line, -1) {
			labels[label[1]] = label[2]
		}
		isWrite := slices.Contains([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE"}, labels["verb"])
		if !isWrite || labels["resource"] != resource || !strings.HasPrefix(labels["code"], "2") {
			continue
		}
		n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			k.b.Fatalf("the metric %s: %v", line, err)
		}
		found[labels["verb"]+" "+labels["subresource"]] += n
	}
	return found
}
