package splitter

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// The defaults of a policy.
const (
	DefaultGracePeriod  = 5 * time.Minute
	DefaultMoveInterval = 10 * time.Minute
	// defaultSurgePercent is the default of Deployments in Kubernetes.
	defaultSurgePercent = 25
)

// kinds contains the types that do not follow the general rule of [KindOf].
var kinds = map[schema.GroupKind]workloadv1alpha1.Division{
	// Replicas that have names and data of their own cannot be in two clusters at once.
	{Group: "apps", Kind: "StatefulSet"}: workloadv1alpha1.DivideWhole,
	{Group: "apps", Kind: "DaemonSet"}:   workloadv1alpha1.DivideEverywhere,
	// Each part of a divided job would do all of the work.
	{Group: "batch", Kind: "Job"}:     workloadv1alpha1.DivideWhole,
	{Group: "batch", Kind: "CronJob"}: workloadv1alpha1.DivideWhole,
}

// KindOf returns how a type is divided if the policy does not set it. A type with a scale
// subresource is divided by its replicas. Other types are not divided.
func KindOf(kind schema.GroupKind, scalable bool) workloadv1alpha1.Division {
	if division, ok := kinds[kind]; ok {
		return division
	}
	if scalable {
		return workloadv1alpha1.DivideReplicas
	}
	return workloadv1alpha1.DivideWhole
}

// Policy is the placement policy of a root with all defaults filled in. The zero value does not
// divide anything. Use [NewPolicy].
type Policy struct {
	divide      workloadv1alpha1.Division
	strategy    workloadv1alpha1.Strategy
	topologyKey string
	weights     map[string]uint64
	clusters    labels.Selector
	notClusters labels.Selector
	tolerations []workloadv1alpha1.ClusterToleration
	// surge is the limit in replicas, and surgePercent is the limit in percent of the whole.
	surge, surgePercent int64
	// moves is the limit of moves in an interval. 0 means no limit.
	moves      int64
	interval   time.Duration
	grace      time.Duration
	fenceAfter time.Duration
}

// NewPolicy fills in the defaults of a valid policy. The argument kind is the result of [KindOf]
// for the type of the root.
func NewPolicy(p workloadv1alpha1.PlacementPolicy, kind workloadv1alpha1.Division) (Policy, error) {
	out := Policy{
		divide: p.Divide, strategy: p.Strategy, topologyKey: p.TopologyKey, tolerations: p.Tolerations,
		clusters: labels.Everything(), notClusters: labels.Nothing(),
		grace: DefaultGracePeriod, interval: DefaultMoveInterval,
	}
	out.divide = cmp.Or(out.divide, kind)
	out.strategy = cmp.Or(out.strategy, workloadv1alpha1.StrategyEven)
	out.weights = make(map[string]uint64, len(p.Weights))
	for _, w := range p.Weights {
		out.weights[w.Cluster] = uint64(max(w.Weight, 0))
	}
	var err error
	if p.Clusters != nil {
		if out.clusters, err = metav1.LabelSelectorAsSelector(p.Clusters); err != nil {
			return Policy{}, fmt.Errorf("reading clusters: %w", err)
		}
	}
	if p.NotClusters != nil {
		if out.notClusters, err = metav1.LabelSelectorAsSelector(p.NotClusters); err != nil {
			return Policy{}, fmt.Errorf("reading notClusters: %w", err)
		}
	}
	if err := out.setSurge(p); err != nil {
		return Policy{}, err
	}
	if p.MaxMoves != nil {
		out.moves = int64(p.MaxMoves.Count)
		if p.MaxMoves.Interval != nil {
			out.interval = p.MaxMoves.Interval.Duration
		}
	}
	if p.GracePeriod != nil {
		out.grace = p.GracePeriod.Duration
	}
	if p.FenceAfter != nil {
		out.fenceAfter = p.FenceAfter.Duration
	}
	return out, nil
}

func (p *Policy) setSurge(policy workloadv1alpha1.PlacementPolicy) error {
	switch s := policy.MaxSurge; {
	case s == nil && p.divide == workloadv1alpha1.DivideReplicas:
		p.surgePercent = defaultSurgePercent
	case s == nil:
	case s.StrVal != "":
		if _, err := fmt.Sscanf(s.StrVal, "%d%%", &p.surgePercent); err != nil {
			return fmt.Errorf("reading maxSurge %q: %w", s.StrVal, err)
		}
	default:
		p.surge = int64(s.IntVal)
	}
	return nil
}

// Division returns how the root is divided. It is empty for the zero Policy.
func (p Policy) Division() workloadv1alpha1.Division { return p.divide }

// Everywhere returns a copy of the policy that sends the root to each cluster that the policy
// allows.
func (p Policy) Everywhere() Policy {
	p.divide, p.surge, p.surgePercent = workloadv1alpha1.DivideEverywhere, 0, 0
	return p
}

// FenceAfter returns the time after which a disconnected cluster stops the replicas of the root.
// 0 means never.
func (p Policy) FenceAfter() time.Duration { return p.fenceAfter }

// surgeOf returns the number of replicas that may exist above a whole.
func (p *Policy) surgeOf(whole int64) int64 {
	return p.surge + (whole*p.surgePercent+99)/100
}

// fenced reports whether replicas may be replaced only after the time when they must have
// stopped.
func (p *Policy) fenced() bool { return p.fenceAfter > 0 }

// tolerates reports whether the policy tolerates a taint.
func (p *Policy) tolerates(taint workloadv1alpha1.ClusterTaint) bool {
	for _, t := range p.tolerations {
		if t.Tolerates(taint) {
			return true
		}
	}
	return false
}

// named is the labels of a cluster with one more label for its name.
type named struct {
	labels.Set
	name string
}

// Has implements labels.Labels.
func (n named) Has(label string) bool {
	return label == workloadv1alpha1.ClusterLabel || n.Set.Has(label)
}

// Get implements labels.Labels.
func (n named) Get(label string) string {
	if label == workloadv1alpha1.ClusterLabel {
		return n.name
	}
	return n.Set.Get(label)
}

// Lookup implements labels.Labels.
func (n named) Lookup(label string) (string, bool) {
	if label == workloadv1alpha1.ClusterLabel {
		return n.name, true
	}
	return n.Set.Lookup(label)
}
