package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/rikcluster"
)

const (
	// maxWrites is the limit of writes for an instance until it is Running: created, bound,
	// running. The rest is for writes once a second or once a workload.
	maxWrites = 3.2
	// creators is the number of parallel requests.
	creators = 128
)

// BenchmarkPlacement brings many instances to Running over many simulated nodes, which use the
// real protocol, and deletes them again. It does so once with one request for each instance, and
// once with the replicas of one workload. It counts the writes in the datastore and fails if
// there are more than maxWrites per instance.
func BenchmarkPlacement(b *testing.B) {
	for _, way := range []struct {
		name     string
		automate bool
	}{{"requests", false}, {"replicas", true}} {
		b.Run(way.name, func(b *testing.B) {
			for range b.N {
				place(b, way.automate)
			}
		})
	}
}

// placing is one run.
type placing struct {
	b                 *testing.B
	api               client.WithWatch
	store             datastore
	server, simulator int // process IDs
	nodes, instances  int
}

func place(b *testing.B, automate bool) {
	b.Helper()
	begin(b)
	p := placing{b: b, nodes: setting(b, "RIK_BENCH_NODES", 1000), instances: setting(b, "RIK_BENCH_INSTANCES", 10000)}
	c := rikcluster.Start(b, rikcluster.Options{NoAgent: true})
	p.api, p.store, p.server = dial(b, c), openDatastore(b, c), c.Process("server").PID()
	p.join(c)
	writes := p.place(automate)
	p.takeAway()
	if writes > maxWrites {
		b.Fatalf("%.2f writes an instance, more than %.1f", writes, maxWrites)
	}
}

// join starts the nodes and waits until all are ready.
func (p *placing) join(c *rikcluster.Cluster) {
	p.b.Helper()
	began := time.Now()
	// Twice the necessary capacity, so that no instance waits for capacity.
	each := max(250, 2*p.instances/p.nodes)
	p.simulator, _ = start(p.b, filepath.Join(c.Dir, "simulate.log"), filepath.Join(c.Bin, "rik"), "simulate",
		"--data-dir", c.DataDir(), "--nodes", strconv.Itoa(p.nodes), "--instances", strconv.Itoa(each))
	rikcluster.Eventually(p.b, timeout, func() error {
		if n := readyNodes(p.b.Context(), p.api); n != p.nodes {
			return fmt.Errorf("%d of %d nodes are ready", n, p.nodes)
		}
		return nil
	})
	p.b.Logf("%d nodes ready %.1f s after the start of their simulation", p.nodes, time.Since(began).Seconds())
	settle(3 * time.Second)
}

// place brings the instances to Running, reports the time and returns the writes per instance.
func (p *placing) place(automate bool) float64 {
	p.b.Helper()
	running := follow(p.b, p.api, fields.OneTermEqualSelector("status.phase", string(rikv1alpha1.InstanceRunning)))
	used := p.used()
	_, before := p.store.instances()
	began := time.Now()
	submitting, ctx := errgroup.WithContext(p.b.Context())
	submitting.Go(func() error { return p.submit(ctx, automate) })
	seen := map[string]bool{}
	took := running.await(strconv.Itoa(p.instances)+" instances to run", func(event watch.EventType, in *rikv1alpha1.Instance) bool {
		if event != watch.Deleted {
			seen[in.Name] = true
		}
		return len(seen) == p.instances
	}).Sub(began)
	if err := submitting.Wait(); err != nil {
		p.b.Fatal(err)
	}
	_, after := p.store.instances()
	spent := p.used()
	server := read(p.b, p.server)
	each := func(program int) float64 { return milliseconds(spent[program]-used[program]) / float64(p.instances) }
	writes := float64(after-before) / float64(p.instances)
	p.b.ReportMetric(float64(p.instances)/took.Seconds(), "instances/s")
	p.b.ReportMetric(each(p.server), "cpu-ms/instance")
	p.b.ReportMetric(writes, "writes/instance")
	p.b.ReportMetric(server.resident, "server-rss-MiB")
	p.b.Logf("%d instances on %d nodes: all Running after %.2f s, %.2f writes each", p.instances, p.nodes, took.Seconds(), writes)
	p.b.Logf("CPU an instance: server %.3f ms, simulation %.3f ms, benchmark %.3f ms; server at most %.0f MiB; load %s",
		each(p.server), each(p.simulator), each(os.Getpid()), server.peak, load())
	return writes
}

// used returns the CPU time of all processes involved.
func (p *placing) used() map[int]time.Duration {
	p.b.Helper()
	used := map[int]time.Duration{}
	for _, pid := range []int{p.server, p.simulator, os.Getpid()} {
		used[pid] = read(p.b, pid).cpu
	}
	return used
}

// submit creates the instances: through the replicas of one workload, or with one request for
// each.
func (p *placing) submit(ctx context.Context, automate bool) error {
	const image = "docker://bench.invalid/app:v1" // the simulation pulls nothing
	if automate {
		replicas := int32(p.instances)
		return p.api.Create(ctx, workload("placed", image, script, &replicas))
	}
	if err := p.api.Create(ctx, workload("placed", image, script, nil)); err != nil {
		return err
	}
	requests, ctx := errgroup.WithContext(ctx)
	requests.SetLimit(creators)
	for i := range p.instances {
		requests.Go(func() error { return create(ctx, p.api, "placed", fmt.Sprintf("placed-%d", i)) })
	}
	return requests.Wait()
}

// takeAway deletes the workload and with it its instances.
func (p *placing) takeAway() {
	p.b.Helper()
	there, before := p.store.instances()
	if there != int64(p.instances) {
		p.b.Fatalf("%d instances are in the datastore, want %d", there, p.instances)
	}
	began := time.Now()
	if err := p.api.Delete(p.b.Context(), &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "placed"}}); err != nil {
		p.b.Fatal(err)
	}
	// Poll seldom, because counting uses time of the datastore.
	took := poll(p.b, time.Second, "all instances to be gone", func() bool {
		left, _ := p.store.instances()
		return left == 0
	}).Sub(began)
	_, after := p.store.instances()
	p.b.ReportMetric(float64(p.instances)/took.Seconds(), "deletions/s")
	p.b.ReportMetric(float64(after-before)/float64(p.instances), "writes/deletion")
}
