package v1alpha1

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestWithHints(t *testing.T) {
	t.Parallel()
	grace := &metav1.Duration{Duration: time.Minute}
	surge := intstr.FromString("50%")
	base := PlacementPolicy{Strategy: StrategyWeighted, Weights: []ClusterWeight{{"east", 3}}, GracePeriod: grace}
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        PlacementPolicy
	}{
		"none of ours": {map[string]string{"a": "b", "workloads.kcp.dev/yield": "spec.replicas"}, base},
		"weights, field by field": {map[string]string{HintPrefix + "weights": "east=1, west=2"},
			PlacementPolicy{Strategy: StrategyWeighted, Weights: []ClusterWeight{{"east", 1}, {"west", 2}}, GracePeriod: grace}},
		"another strategy leaves the weights behind": {map[string]string{HintPrefix + "strategy": "even"},
			PlacementPolicy{Strategy: StrategyEven, GracePeriod: grace}},
		"all": {map[string]string{
			HintPrefix + "divide": "replicas", HintPrefix + "strategy": "spread", HintPrefix + "topology-key": "region",
			HintPrefix + "clusters": "tier=gold,region in (a,b)", HintPrefix + "not-clusters": "!tier",
			HintPrefix + "tolerations": "gpu,a=b:NoSchedule", HintPrefix + "max-surge": "50%",
			HintPrefix + "max-moves": "5/1h", HintPrefix + "grace-period": "10s", FenceAfterAnnotation: "30s",
		}, PlacementPolicy{
			Divide: DivideReplicas, Strategy: StrategySpread, TopologyKey: "region",
			Clusters: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}, MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "region", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}}}},
			NotClusters: &metav1.LabelSelector{MatchLabels: map[string]string{}, MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "tier", Operator: metav1.LabelSelectorOpDoesNotExist, Values: []string{}}}},
			Tolerations: []ClusterToleration{{Key: "gpu", Operator: TolerationExists}, {Key: "a", Operator: TolerationEqual, Value: "b", Effect: TaintNoSchedule}},
			MaxSurge:    &surge, MaxMoves: &MoveLimit{Count: 5, Interval: &metav1.Duration{Duration: time.Hour}},
			GracePeriod: &metav1.Duration{Duration: 10 * time.Second}, FenceAfter: &metav1.Duration{Duration: 30 * time.Second},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, errs := base.WithHints(tc.annotations)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("WithHints(%v): %s", tc.annotations, diff)
			}
		})
	}
}

func TestWithHintsRefuses(t *testing.T) {
	t.Parallel()
	for annotation, value := range map[string]string{
		"weight": "a=1", "weights": "east", "clusters": "a in b", "not-clusters": "==", "tolerations": ":NoExecute",
		"max-moves": "many", "max-surge": "half", "strategy": "random", "divide": "half", "grace-period": "soon", "topology-key": "region",
	} {
		_, errs := PlacementPolicy{}.WithHints(map[string]string{HintPrefix + annotation: value})
		// Named is the annotation, or the field that it sets.
		said := strings.ToLower(strings.ReplaceAll(errs.ToAggregate().Error(), "-", ""))
		if len(errs) == 0 || !strings.Contains(said, strings.ReplaceAll(annotation, "-", "")) {
			t.Errorf("%s: %s gives %v, want an error that names it", annotation, value, errs)
		}
	}
	_, errs := PlacementPolicy{}.WithHints(map[string]string{FenceAfterAnnotation: "5s", HintPrefix + "weights": "a=1,a=2,B=3"})
	if len(errs) != 4 {
		t.Errorf("%v, want the fence, the strategy, the repeated and the bad cluster", errs)
	}
}

func TestTolerates(t *testing.T) {
	t.Parallel()
	taint := ClusterTaint{Key: "a", Value: "b", Effect: TaintNoSchedule}
	for i, tc := range []struct {
		toleration ClusterToleration
		want       bool
	}{
		{ClusterToleration{Operator: TolerationExists}, true},
		{ClusterToleration{Key: "a", Operator: TolerationExists}, true},
		{ClusterToleration{Key: "a", Value: "b"}, true},
		{ClusterToleration{Key: "a", Value: "b", Effect: TaintNoSchedule}, true},
		{ClusterToleration{Key: "a", Value: "b", Effect: TaintNoExecute}, false},
		{ClusterToleration{Key: "a", Value: "c"}, false},
		{ClusterToleration{Key: "x", Operator: TolerationExists}, false},
		{ClusterToleration{Value: "b"}, false},
	} {
		if got := tc.toleration.Tolerates(taint); got != tc.want {
			t.Errorf("%d: %+v tolerates %+v: %v, want %v", i, tc.toleration, taint, got, tc.want)
		}
	}
}
