package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/testkit/kube"
)

const (
	// decidedClusters is the number of clusters in a decision, and decideFor how long the
	// benchmark makes decisions.
	decidedClusters = 100
	decideFor       = 3 * time.Second

	// scaledAlone roots are scaled one after the other. Then scaledAtOnce of them are scaled at
	// the same time, scaledRounds times.
	scaledAlone  = 100
	scaledAtOnce = 32
	scaledRounds = 8
	// A root is scaled from fewReplicas to manyReplicas and back, with half of them in each
	// cluster.
	fewReplicas, manyReplicas = 4, 8
)

// BenchmarkSplitDecisions measures the number of decisions per second, on one core, on splitting
// a root over 100 clusters: at rest, after scaling, and after the loss of a cluster.
func BenchmarkSplitDecisions(b *testing.B) {
	begin(b)
	for _, strategy := range []workloadv1alpha1.Strategy{workloadv1alpha1.StrategyEven, workloadv1alpha1.StrategySpread} {
		rest := decidedState(b, strategy)
		scaled, lost := rest, rest
		scaled.Root.Replicas += 100
		lost.Clusters = append([]splitter.Cluster(nil), rest.Clusters...)
		lost.Clusters[0].Ready = false
		for _, c := range []struct {
			name    string
			state   splitter.State
			changes int
		}{{"at rest", rest, 0}, {"scaled", scaled, decidedClusters * 9 / 10}, {"one lost", lost, 5}} {
			b.Run(string(strategy)+"/"+c.name, func(b *testing.B) {
				if r := splitter.Split(c.state); len(r.Changes) < c.changes || c.changes == 0 && len(r.Changes) > 0 {
					b.Fatalf("%d changes, want %d", len(r.Changes), c.changes)
				}
				for range b.N {
					n, began := 0, time.Now()
					for ; time.Since(began) < decideFor; n++ {
						splitter.Split(c.state)
					}
					took := time.Since(began)
					b.ReportMetric(float64(n)/took.Seconds(), "decisions/s")
					b.ReportMetric(float64(took.Microseconds())/float64(n), "µs/decision")
				}
			})
		}
	}
}

// decidedState returns a root with 1,000 replicas at rest.
func decidedState(b *testing.B, strategy workloadv1alpha1.Strategy) splitter.State {
	b.Helper()
	wished := workloadv1alpha1.PlacementPolicy{Strategy: strategy}
	if strategy == workloadv1alpha1.StrategySpread {
		wished.TopologyKey = "region"
	}
	policy, err := splitter.NewPolicy(wished, workloadv1alpha1.DivideReplicas)
	if err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	state := splitter.State{Root: splitter.Root{Name: "web", Replicas: 1000}, Policy: policy, Now: now}
	for i := range decidedClusters {
		state.Clusters = append(state.Clusters, splitter.Cluster{
			Name: fmt.Sprintf("c%02d", i), Labels: map[string]string{"region": fmt.Sprint(i % 7)},
			Ready: true, Since: now.Add(-time.Hour), Serves: true,
		})
	}
	r := splitter.Simulate(state)
	if !r.AtRest || r.Last.Unplaced > 0 {
		b.Fatalf("the state does not come to rest: %s", r.Last.Explanation)
	}
	return r.Final
}

// BenchmarkSplitScale measures the time from the scaling of a root in a kcp until the root's
// status reports that all replicas are ready. The root is split over two clusters with a
// Kubernetes API server each. One root is scaled at a time, and then many in parallel. The
// benchmark simulates the clusters' controllers: replicas of a Deployment are ready at once. In
// turn with it, a bare client scales a Deployment in both clusters, and watches the same status.
func BenchmarkSplitScale(b *testing.B) {
	begin(b)
	s := startSplitScale(b)
	for range b.N {
		for _, w := range s.ways() {
			w.scale(b, 2, scaledAtOnce) // fills caches
		}
		for _, at := range []struct{ rounds, once int }{{scaledAlone, 1}, {scaledRounds, scaledAtOnce}} {
			for _, w := range s.ways() {
				before, written := read(b, s.above.pid).cpu, total(s.above.writes(deploymentType.Resource))
				began := time.Now()
				took := w.scale(b, at.rounds, at.once)
				each := time.Since(began) / time.Duration(len(took))
				cpu := (read(b, s.above.pid).cpu - before) / time.Duration(len(took))
				b.ReportMetric(milliseconds(percentile(took, 50)), fmt.Sprintf("%s-%d-p50-ms", w.name, at.once))
				b.ReportMetric(milliseconds(percentile(took, 99)), fmt.Sprintf("%s-%d-p99-ms", w.name, at.once))
				writes := (total(s.above.writes(deploymentType.Resource)) - written) / float64(len(took))
				b.Logf("%s, %d at once, %d in all: one every %.1f ms; the kcp's CPU %.1f ms and %.1f writes each",
					w.name, at.once, len(took), milliseconds(each), milliseconds(cpu), writes)
			}
		}
	}
	b.Logf("load at the end: %s", load())
}

func total(counts map[string]float64) float64 {
	var sum float64
	for _, n := range counts {
		sum += n
	}
	return sum
}

// splitScale is a kcp with two clusters, and the roots to scale in parallel.
type splitScale struct {
	b     *testing.B
	above *controlPlane
	roots *numbers
	below map[string]*scaledCluster
}

type scaledCluster struct {
	*kube.Cluster
	objects dynamic.Interface
	numbers *numbers
}

func startSplitScale(b *testing.B) *splitScale {
	b.Helper()
	s := &splitScale{b: b, above: startKCP(b, "--push-mode", "--auto-publish-apis"), below: map[string]*scaledCluster{}}
	for _, name := range []string{"east", "west"} {
		c := &scaledCluster{Cluster: kube.Start(b, kube.Options{})}
		c.objects = dynamic.NewForConfigOrDie(c.Rest())
		c.numbers = watchNumbers(b, c.Rest(), answer(c.objects))
		s.below[name] = c
		s.above.register(name, c.Kubeconfig())
	}
	for name := range s.below {
		poll(b, 100*time.Millisecond, name+" to carry", func() bool { return carries(s.above.cluster(name), "deployments.apps") })
	}
	// As in BenchmarkSync.
	settle(5 * time.Second)
	s.above.create(namespaceType, object(namespaceType, "Namespace", "", "team"))
	s.roots = watchNumbers(b, s.above.config, nil)
	for i := range scaledAtOnce {
		s.above.create(deploymentType, scaledDeployment("team", fmt.Sprintf("root-%02d", i), fewReplicas))
		for _, c := range s.below {
			if _, err := c.objects.Resource(deploymentType).Namespace("default").Create(b.Context(), scaledDeployment("default", fmt.Sprintf("bare-%02d", i), fewReplicas/2), metav1.CreateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	}
	for i := range scaledAtOnce {
		if _, err := s.roots.await(b.Context(), fmt.Sprintf("root-%02d", i), fewReplicas); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

// scaling is one way to scale. It returns when the new number is seen to be ready.
type scaling struct {
	name string
	to   func(ctx context.Context, i int, replicas int64) (seen time.Time, err error)
}

func (s *splitScale) ways() []*scaling {
	return []*scaling{
		{name: "rik", to: func(ctx context.Context, i int, replicas int64) (time.Time, error) {
			name := fmt.Sprintf("root-%02d", i)
			if err := scaleTo(ctx, s.above.objects, "team", name, replicas); err != nil {
				return time.Time{}, err
			}
			return s.roots.await(ctx, name, replicas)
		}},
		{name: "bare", to: func(ctx context.Context, i int, replicas int64) (time.Time, error) {
			name := fmt.Sprintf("bare-%02d", i)
			var times [2]time.Time
			group, ctx := errgroup.WithContext(ctx)
			for n, cluster := range []string{"east", "west"} {
				group.Go(func() (err error) {
					if err = scaleTo(ctx, s.below[cluster].objects, "default", name, replicas/2); err == nil {
						times[n], err = s.below[cluster].numbers.await(ctx, name, replicas/2)
					}
					return err
				})
			}
			err := group.Wait()
			if times[0].After(times[1]) {
				return times[0], err
			}
			return times[1], err
		}},
	}
}

// scale scales up and down in turn, and returns the time of each. After an even number of
// rounds, everything is as before.
func (w *scaling) scale(b *testing.B, rounds, atOnce int) []time.Duration {
	b.Helper()
	took := make([]time.Duration, rounds*atOnce)
	for round := range rounds {
		replicas := int64(manyReplicas)
		if round%2 == 1 {
			replicas = fewReplicas
		}
		group, ctx := errgroup.WithContext(b.Context())
		for i := range atOnce {
			group.Go(func() error {
				began := time.Now()
				seen, err := w.to(ctx, i, replicas)
				took[round*atOnce+i] = seen.Sub(began)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			b.Fatalf("%s: %v", w.name, err)
		}
	}
	return took
}

func scaleTo(ctx context.Context, client dynamic.Interface, namespace, name string, replicas int64) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"replicas": replicas}})
	if err != nil {
		return err
	}
	_, err = client.Resource(deploymentType).Namespace(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
