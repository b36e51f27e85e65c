package split

import (
	"bytes"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/testkit/golden"
)

// leafOf returns a root's leaf for a cluster, with some of its replicas ready.
func leafOf(t *testing.T, root *unstructured.Unstructured, cluster string, replicas, ready int32) *unstructured.Unstructured {
	t.Helper()
	leaf, err := splitter.Render(root, cluster, splitter.ScalePath{}, &replicas)
	if err != nil {
		t.Fatal(err)
	}
	leaf.SetGeneration(1)
	leaf.Object["status"] = map[string]any{"observedGeneration": int64(1), "replicas": int64(replicas), "readyReplicas": int64(ready)}
	return leaf
}

// staged returns a snapshot that sends no requests.
func staged(clusters []*workloadv1alpha1.Cluster, objects ...*unstructured.Unstructured) *snapshot {
	s := &snapshot{
		namespaces: []string{"shop"}, clusters: clusters, placements: map[string][]*workloadv1alpha1.Placement{},
		lists: map[schema.GroupVersionKind]*objectList{}, names: map[string]map[client.ObjectKey]bool{},
	}
	byKind := map[schema.GroupVersionKind][]*unstructured.Unstructured{rikctltest.Deployments.GVK: nil, serviceKind: nil, claimKind: nil}
	for _, o := range objects {
		byKind[o.GroupVersionKind()] = append(byKind[o.GroupVersionKind()], o)
	}
	for kind, of := range byKind {
		s.lists[kind] = newObjectList(of)
	}
	return s
}

// atRest returns a snapshot in which web is split over two ready clusters, with a Service.
func atRest(t *testing.T) *snapshot {
	t.Helper()
	root := rikctltest.Parse(t, rikctltest.WebRoot)
	service := rikctltest.Parse(t, "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {selector: {app: web}}")
	s := staged([]*workloadv1alpha1.Cluster{rikctltest.Cluster("east", map[string]string{"region": "eu"}), rikctltest.Cluster("west", map[string]string{"region": "us"})},
		root, leafOf(t, root, "east", 5, 5), leafOf(t, root, "west", 5, 5), service)
	s.names["ConfigMap"] = map[client.ObjectKey]bool{{Namespace: "shop", Name: "settings"}: true}
	s.names["Secret"] = map[client.ObjectKey]bool{}
	return s
}

// whyOf returns the explanation for web in a snapshot.
func whyOf(t *testing.T, s *snapshot) Division {
	t.Helper()
	w, err := loader.Read(t.Context(), s, s.lists[rikctltest.Deployments.GVK].all[0], rikctltest.Deployments, rikctltest.At(12).Time)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Problems) > 0 {
		return describeRoot(w)
	}
	return explained(w, splitter.Split(w.State))
}

func TestWhyDividedGolden(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, s *snapshot){
		"why-divided": func(*testing.T, *snapshot) {},
		"why-divided-lost": func(_ *testing.T, s *snapshot) {
			turn(s.clusters[0], "Ready", rikctltest.At(12).Add(-time.Minute))
		},
		"why-divided-placement": func(t *testing.T, s *snapshot) {
			root := s.lists[rikctltest.Deployments.GVK].all[0]
			root.SetAnnotations(map[string]string{workloadv1alpha1.HintPrefix + "max-moves": "2/10m", workloadv1alpha1.HintPrefix + "max-surge": "1"})
			for i, name := range []string{"first", "second"} {
				s.putPlacement(&workloadv1alpha1.Placement{
					ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", CreationTimestamp: rikctltest.At(i)},
					Spec: workloadv1alpha1.PlacementSpec{Selector: &metav1.LabelSelector{}, PlacementPolicy: workloadv1alpha1.PlacementPolicy{
						Strategy: workloadv1alpha1.StrategyWeighted, Weights: []workloadv1alpha1.ClusterWeight{{Cluster: "east", Weight: 4}}}},
				})
			}
			leaf := leafOf(t, root, "west", 5, 3)
			leaf.SetAnnotations(map[string]string{workloadv1alpha1.ProblemAnnotationPrefix + "west": "Refused: no\x1b[31m quota"})
			if err := s.put(t.Context(), leaf); err != nil {
				t.Fatal(err)
			}
		},
		"why-divided-problems": func(_ *testing.T, s *snapshot) {
			s.lists[rikctltest.Deployments.GVK].all[0].SetAnnotations(map[string]string{
				workloadv1alpha1.HintPrefix + "strategy": "random", workloadv1alpha1.HintPrefix + "max-moves": "many"})
		},
		"why-divided-nowhere": func(_ *testing.T, s *snapshot) {
			s.clusters, s.lists[rikctltest.Deployments.GVK] = nil, newObjectList(s.lists[rikctltest.Deployments.GVK].all[:1])
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := atRest(t)
			change(t, s)
			d := whyOf(t, s)
			var out bytes.Buffer
			if err := printDivision(&out, &d, rikctltest.At(12).Time); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(out.String(), "\x1b") {
				t.Errorf("what a cluster says reaches the terminal: %q", out.String())
			}
			golden.Compare(t, name+".golden", out.Bytes())
		})
	}
}

func TestWhyDividedJSON(t *testing.T) {
	t.Parallel()
	s := atRest(t)
	turn(s.clusters[0], "Ready", rikctltest.At(12).Add(-time.Minute))
	for _, output := range printer.Outputs {
		var out bytes.Buffer
		if err := printer.Data(&out, whyOf(t, s), output); err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, "why-divided-"+output+".golden", out.Bytes())
	}
}

// planOf plans the roots of files over a snapshot. change makes the other changes of the files.
func planOf(t *testing.T, before *snapshot, change func(*planner), roots ...*unstructured.Unstructured) *planner {
	t.Helper()
	p := &planner{types: []loader.Type{rikctltest.Deployments}, now: rikctltest.At(12).Time, before: before, after: before.over(), files: map[string]bool{}, plans: []Plan{}}
	change(p)
	for _, root := range roots {
		if err := p.addRoot(t.Context(), root, rikctltest.Deployments, "web.yaml"); err != nil {
			t.Fatal(err)
		}
		if err := p.after.put(t.Context(), root); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.plan(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlanGolden(t *testing.T) {
	t.Parallel()
	edited := func(from, to string) *unstructured.Unstructured {
		return rikctltest.Parse(t, strings.Replace(rikctltest.WebRoot, from, to, 1))
	}
	nothing := func(*planner) {}
	hinted := func(name, value string) *unstructured.Unstructured {
		root := rikctltest.Parse(t, rikctltest.WebRoot)
		root.SetAnnotations(map[string]string{name: value})
		return root
	}
	for name, tc := range map[string]struct {
		change  func(*planner)
		roots   []*unstructured.Unstructured
		changes bool
	}{
		"plan-same":     {nothing, []*unstructured.Unstructured{rikctltest.Parse(t, rikctltest.WebRoot)}, false},
		"plan-scaled":   {nothing, []*unstructured.Unstructured{edited("replicas: 10", "replicas: 7")}, true},
		"plan-image":    {nothing, []*unstructured.Unstructured{edited("web:1", "web:2")}, true},
		"plan-new":      {nothing, []*unstructured.Unstructured{edited("name: web, namespace", "name: api, namespace")}, true},
		"plan-hinted":   {nothing, []*unstructured.Unstructured{hinted(workloadv1alpha1.HintPrefix+"clusters", "region=eu")}, true},
		"plan-problems": {nothing, []*unstructured.Unstructured{hinted(workloadv1alpha1.HintPrefix+"strategy", "spread")}, false},
		"plan-targeted": {nothing, []*unstructured.Unstructured{edited("name: web, namespace", "labels: {workloads.kcp.dev/cluster: east}, name: web, namespace")}, true},
		"plan-cluster": {func(p *planner) {
			p.after.putCluster(expected(&workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "north"}}, p.before.clusters))
			lost := p.before.cluster("east").DeepCopy()
			turn(lost, "Ready", rikctltest.At(12).Time)
			p.after.putCluster(lost)
			p.affected = []string{""}
		}, nil, true},
		"plan-placement": {func(p *planner) {
			p.after.putPlacement(&workloadv1alpha1.Placement{
				ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: "shop"},
				Spec: workloadv1alpha1.PlacementSpec{Selector: &metav1.LabelSelector{}, PlacementPolicy: workloadv1alpha1.PlacementPolicy{
					Divide: workloadv1alpha1.DivideReplicas, Strategy: workloadv1alpha1.StrategySpread, TopologyKey: "zone"}}})
			p.affected = []string{"shop"}
		}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := planOf(t, atRest(t), tc.change, tc.roots...)
			var out bytes.Buffer
			if err := printPlans(&out, p); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, name+".golden", out.Bytes())
			if got := p.changes(); got != tc.changes {
				t.Errorf("changes = %v, want %v\n%s", got, tc.changes, out.String())
			}
		})
	}
}

func TestWhatifGolden(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]Scenario{
		"whatif-lost":     {Lost: []string{"east"}},
		"whatif-replaced": {Lost: []string{"east"}, Added: []string{"north=region=eu,cpu=16"}},
		"whatif-cordoned": {Cordoned: []string{"west"}},
		"whatif-all-gone": {NotReady: []string{"east"}, Removed: []string{"west"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, now := atRest(t), rikctltest.At(12).Time
			after := before.over()
			if err := s.apply(after, now); err != nil {
				t.Fatal(err)
			}
			look, err := compareEnds(t.Context(), before, after, []plannedRoot{{before.lists[rikctltest.Deployments.GVK].all[0], rikctltest.Deployments}}, now)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := printImpact(&out, look, &s, now); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, name+".golden", out.Bytes())
		})
	}
}
