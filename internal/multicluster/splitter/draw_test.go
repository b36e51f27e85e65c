package splitter

import (
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/race"
)

// cases returns how many cases a property is tested with.
func cases(n int) int {
	if race.Enabled {
		return n / 50
	}
	return n
}

// random is the random source of the case with a given number. A failed case can be run again.
type random struct{ *rand.Rand }

func newRandom(property, number int) random {
	return random{rand.New(rand.NewPCG(uint64(property), uint64(number)))}
}

func (d random) percent(n int) bool { return d.IntN(100) < n }

// moment returns a time close to now, before or after it.
func (d random) moment() time.Time {
	return start.Add(time.Duration(d.IntN(41)-20) * time.Minute)
}

// drawPolicies returns policies of all kinds. They are reused, because making one takes longer
// than a decision.
func drawPolicies(t *testing.T, property int, wish func(random, *policy)) []Policy {
	t.Helper()
	policies := make([]Policy, 200)
	for i := range policies {
		d := newRandom(property, -i)
		p := drawPolicy(d)
		if wish != nil {
			wish(d, &p)
		}
		if errs := p.Validate(nil); len(errs) > 0 {
			t.Fatal(errs)
		}
		policies[i] = newPolicy(t, p)
	}
	return policies
}

func drawPolicy(d random) policy {
	var p policy
	p.Divide = []workloadv1alpha1.Division{"", "", "", "", "", "replicas", workloadv1alpha1.DivideWhole, workloadv1alpha1.DivideEverywhere}[d.IntN(8)]
	p.Strategy = []workloadv1alpha1.Strategy{"", "even", "weighted", "weighted", "capacity", "spread", "spread"}[d.IntN(7)]
	if p.Strategy == workloadv1alpha1.StrategySpread {
		p.TopologyKey = "region"
	}
	if p.Strategy == workloadv1alpha1.StrategyWeighted || p.Strategy == workloadv1alpha1.StrategySpread && d.percent(50) {
		for _, name := range names[:1+d.IntN(len(names))] {
			p.Weights = append(p.Weights, workloadv1alpha1.ClusterWeight{Cluster: name, Weight: int32(d.IntN(8))})
		}
	}
	if d.percent(20) {
		p.Clusters = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"gold", "silver"}}}}
	}
	if d.percent(20) {
		p.NotClusters = &metav1.LabelSelector{MatchLabels: map[string]string{workloadv1alpha1.ClusterLabel: names[d.IntN(len(names))]}}
	}
	if d.percent(30) {
		p.Tolerations = []workloadv1alpha1.ClusterToleration{{Key: "gpu", Operator: workloadv1alpha1.TolerationExists, Effect: []workloadv1alpha1.TaintEffect{"", "NoExecute"}[d.IntN(2)]}}
	}
	if d.percent(70) {
		p.MaxSurge = surgeOf(d.IntN(4))
	}
	if d.percent(30) {
		p.MaxMoves = &workloadv1alpha1.MoveLimit{Count: int32(1 + d.IntN(4))}
	}
	if d.percent(30) {
		p.FenceAfter = &metav1.Duration{Duration: time.Minute}
	}
	return p
}

// names are the names of clusters. The last ones belong to removed clusters.
var names = []string{"a", "b", "c", "d", "e", "f"}

func drawCluster(d random, name string) Cluster {
	c := Cluster{
		Name: name, Ready: d.percent(80), Since: d.moment(), Unschedulable: d.percent(10),
		Removing: d.percent(3), Serves: d.percent(95), Fences: d.percent(80),
		Allocatable: allocatable[d.IntN(len(allocatable))],
		Labels:      someLabels[d.IntN(len(someLabels))],
	}
	if !c.Ready && d.percent(70) {
		c.Silent = d.moment()
	}
	if d.percent(15) {
		c.EvictAfter = d.moment()
	}
	if d.percent(15) {
		c.Taints = []workloadv1alpha1.ClusterTaint{{Key: "gpu", Effect: []workloadv1alpha1.TaintEffect{"NoExecute", "NoSchedule"}[d.IntN(2)]}}
	}
	return c
}

var (
	allocatable = []corev1.ResourceList{nil, {"cpu": resource.MustParse("4")}, {"cpu": resource.MustParse("7500m")}, {"cpu": resource.MustParse("16")}}
	someLabels  = []map[string]string{nil, {"region": "x"}, {"region": "y", "tier": "gold"}, {"region": "y", "tier": "silver"}, {"region": "z", "tier": "bronze"}}
)

func drawLeaf(d random, name string, p *Policy) Leaf {
	l := Leaf{Cluster: name, Replicas: 1, Settled: d.percent(60), Deleting: d.percent(5), Bound: d.percent(2)}
	if p.divide == workloadv1alpha1.DivideReplicas {
		l.Replicas = int32(d.IntN(9))
		l.Autoscaled = d.percent(5)
	}
	l.Running = max(0, l.Replicas+int32(d.IntN(5))-2)
	l.Ready = int32(d.IntN(int(l.Running) + 1))
	l.AtMost = l.Replicas + int32(d.IntN(3))
	if d.percent(60) {
		l.Running, l.Ready, l.AtMost = l.Replicas, l.Replicas, l.Replicas
	}
	return l
}

// drawState returns any state, including states that never occur in practice.
func drawState(d random, policies []Policy) State {
	st := State{Policy: policies[d.IntN(len(policies))], Now: start}
	st.Root = Root{Name: "web", Replicas: int32(d.IntN(30)), TerminationGrace: 30 * time.Second}
	for _, name := range names[:d.IntN(len(names)+1)] {
		known := d.percent(93)
		if known {
			st.Clusters = append(st.Clusters, drawCluster(d, name))
		}
		if d.percent(65) {
			l := drawLeaf(d, name, &st.Policy)
			if !known && d.percent(50) {
				l.LostAt = d.moment()
			}
			st.Leaves = append(st.Leaves, l)
		}
	}
	if d.percent(40) {
		st.Progress = Progress{Since: d.moment(), Moves: int32(d.IntN(4)), Surged: int32(d.IntN(4))}
	}
	return st
}
