package v1alpha1

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// hints are the annotations on a root, with the field that each one sets.
var hints = map[string]func(*PlacementPolicy, string) error{
	HintPrefix + "divide":       func(p *PlacementPolicy, v string) error { p.Divide = Division(v); return nil },
	HintPrefix + "strategy":     func(p *PlacementPolicy, v string) error { p.Strategy = Strategy(v); return nil },
	HintPrefix + "topology-key": func(p *PlacementPolicy, v string) error { p.TopologyKey = v; return nil },
	HintPrefix + "weights":      func(p *PlacementPolicy, v string) (err error) { p.Weights, err = parseWeights(v); return },
	HintPrefix + "clusters": func(p *PlacementPolicy, v string) (err error) {
		p.Clusters, err = metav1.ParseToLabelSelector(v)
		return
	},
	HintPrefix + "not-clusters": func(p *PlacementPolicy, v string) (err error) {
		p.NotClusters, err = metav1.ParseToLabelSelector(v)
		return
	},
	HintPrefix + "tolerations":  func(p *PlacementPolicy, v string) (err error) { p.Tolerations, err = parseTolerations(v); return },
	HintPrefix + "max-surge":    func(p *PlacementPolicy, v string) error { s := intstr.Parse(v); p.MaxSurge = &s; return nil },
	HintPrefix + "max-moves":    func(p *PlacementPolicy, v string) (err error) { p.MaxMoves, err = parseMoves(v); return },
	HintPrefix + "grace-period": func(p *PlacementPolicy, v string) (err error) { p.GracePeriod, err = parseDuration(v); return },
	NamesAnnotation:             func(_ *PlacementPolicy, v string) error { return checkNames(v) },
	FenceAfterAnnotation:        func(p *PlacementPolicy, v string) (err error) { p.FenceAfter, err = parseDuration(v); return },
}

// WithHints returns a policy in which a root's annotations override fields. It returns an error
// for each annotation that is unknown or invalid, and for fields that do not fit together. The
// error names the annotation or the field. With an error it returns no policy.
//
//	placement.workloads.kcp.dev/divide        replicas, whole or everywhere
//	placement.workloads.kcp.dev/strategy      even, weighted, capacity or spread
//	placement.workloads.kcp.dev/topology-key  a label of Clusters
//	placement.workloads.kcp.dev/weights       east=3,west=1
//	placement.workloads.kcp.dev/clusters      a selector, as kubectl takes it
//	placement.workloads.kcp.dev/not-clusters  the same
//	placement.workloads.kcp.dev/tolerations   key=value:NoSchedule,key:NoExecute,key
//	placement.workloads.kcp.dev/max-surge     2 or 25%
//	placement.workloads.kcp.dev/max-moves     5 or 5/10m
//	placement.workloads.kcp.dev/grace-period  5m
//	placement.workloads.kcp.dev/names         root or leaf; for the root alone, see [NamesAnnotation]
//	workloads.kcp.dev/fence-after             30s
func (p PlacementPolicy) WithHints(annotations map[string]string) (PlacementPolicy, field.ErrorList) {
	out := *p.DeepCopy()
	var errs field.ErrorList
	at := field.NewPath("metadata", "annotations")
	for name, value := range annotations {
		if !strings.HasPrefix(name, HintPrefix) && name != FenceAfterAnnotation {
			continue
		}
		set, ok := hints[name]
		if !ok {
			errs = append(errs, field.NotSupported(at, name, hintNames()))
			continue
		}
		if err := set(&out, value); err != nil {
			errs = append(errs, field.Invalid(at.Key(name), value, err.Error()))
		}
	}
	// A strategy of the root removes the fields that belonged to the strategy of the policy.
	if strategy := annotations[HintPrefix+"strategy"]; strategy != "" && Strategy(strategy) != p.Strategy {
		if _, own := annotations[HintPrefix+"topology-key"]; !own {
			out.TopologyKey = ""
		}
		if _, own := annotations[HintPrefix+"weights"]; !own {
			out.Weights = nil
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Error(), b.Error()) })
	errs = append(errs, out.Validate(field.NewPath("spec"))...)
	if len(errs) > 0 {
		return PlacementPolicy{}, errs
	}
	return out, nil
}

func hintNames() []string {
	var names []string
	for name := range hints {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// parseWeights reads east=3,west=1.
func parseWeights(s string) ([]ClusterWeight, error) {
	var weights []ClusterWeight
	for part := range strings.SplitSeq(s, ",") {
		name, number, ok := strings.Cut(strings.TrimSpace(part), "=")
		weight, err := strconv.ParseInt(number, 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q is not CLUSTER=NUMBER", part)
		}
		weights = append(weights, ClusterWeight{Cluster: name, Weight: int32(weight)})
	}
	return weights, nil
}

// parseTolerations reads key=value:NoSchedule,key:NoExecute,key.
func parseTolerations(s string) ([]ClusterToleration, error) {
	var tolerations []ClusterToleration
	for part := range strings.SplitSeq(s, ",") {
		matched, effect, _ := strings.Cut(strings.TrimSpace(part), ":")
		key, value, equal := strings.Cut(matched, "=")
		if key == "" {
			return nil, fmt.Errorf("%q is not KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT", part)
		}
		t := ClusterToleration{Key: key, Operator: TolerationExists, Effect: TaintEffect(effect)}
		if equal {
			t.Operator, t.Value = TolerationEqual, value
		}
		tolerations = append(tolerations, t)
	}
	return tolerations, nil
}

// parseMoves reads 5 and 5/10m.
func parseMoves(s string) (*MoveLimit, error) {
	number, interval, timed := strings.Cut(s, "/")
	count, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is not a number, or NUMBER/TIME", s)
	}
	limit := &MoveLimit{Count: int32(count)}
	if timed {
		limit.Interval, err = parseDuration(interval)
	}
	return limit, err
}

func parseDuration(s string) (*metav1.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return nil, fmt.Errorf("%q is not a time such as 30s or 5m", s)
	}
	return &metav1.Duration{Duration: d}, nil
}

// Bounds of a policy. The schema of the CRD has them too.
const (
	maxWeight     = 1_000_000
	maxClusters   = 256
	maxCount      = 1_000_000
	maxTolerated  = 64
	minFenceAfter = 10 * time.Second
)

// Validate returns all errors of a policy, each with its field below a path. It makes the checks
// of the CRD's schema, for policies that are not in a Placement.
func (p *PlacementPolicy) Validate(at *field.Path) field.ErrorList {
	errs := oneOf(at.Child("divide"), p.Divide, DivideReplicas, DivideWhole, DivideEverywhere)
	errs = append(errs, oneOf(at.Child("strategy"), p.Strategy, StrategyEven, StrategyWeighted, StrategyCapacity, StrategySpread)...)
	errs = append(errs, p.validateMeasure(at)...)
	errs = append(errs, validateSelector(at.Child("clusters"), p.Clusters)...)
	errs = append(errs, validateSelector(at.Child("notClusters"), p.NotClusters)...)
	errs = append(errs, validateTolerations(at.Child("tolerations"), p.Tolerations)...)
	errs = append(errs, validateSurge(at.Child("maxSurge"), p.MaxSurge)...)
	if p.MaxMoves != nil {
		moves := at.Child("maxMoves")
		if p.MaxMoves.Count < 1 || p.MaxMoves.Count > maxCount {
			errs = append(errs, field.Invalid(moves.Child("count"), p.MaxMoves.Count, fmt.Sprintf("a number from 1 to %d", maxCount)))
		}
		errs = append(errs, validateDuration(moves.Child("interval"), p.MaxMoves.Interval, 0)...)
	}
	errs = append(errs, validateDuration(at.Child("gracePeriod"), p.GracePeriod, 0)...)
	return append(errs, validateDuration(at.Child("fenceAfter"), p.FenceAfter, minFenceAfter)...)
}

// validateMeasure checks the strategy and the fields that belong to it.
func (p *PlacementPolicy) validateMeasure(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	key := at.Child("topologyKey")
	switch spread := p.Strategy == StrategySpread; {
	case spread && p.TopologyKey == "":
		errs = append(errs, field.Required(key, "the strategy spread needs it"))
	case !spread && p.TopologyKey != "":
		errs = append(errs, field.Forbidden(key, "it goes with the strategy spread"))
	case spread:
		for _, problem := range validation.IsQualifiedName(p.TopologyKey) {
			errs = append(errs, field.Invalid(key, p.TopologyKey, problem))
		}
	}
	weights := at.Child("weights")
	switch {
	case p.Strategy == StrategyWeighted && len(p.Weights) == 0:
		errs = append(errs, field.Required(weights, "the strategy weighted needs them"))
	case len(p.Weights) > 0 && p.Strategy != StrategyWeighted && p.Strategy != StrategySpread:
		errs = append(errs, field.Forbidden(weights, "they go with the strategies weighted and spread"))
	case len(p.Weights) > maxClusters:
		errs = append(errs, field.TooMany(weights, len(p.Weights), maxClusters))
	}
	seen := map[string]bool{}
	for i, w := range p.Weights {
		for _, problem := range validation.IsDNS1123Label(w.Cluster) {
			errs = append(errs, field.Invalid(weights.Index(i).Child("cluster"), w.Cluster, problem))
		}
		if w.Weight < 0 || w.Weight > maxWeight {
			errs = append(errs, field.Invalid(weights.Index(i).Child("weight"), w.Weight, fmt.Sprintf("a number from 0 to %d", maxWeight)))
		}
		if seen[w.Cluster] {
			errs = append(errs, field.Duplicate(weights.Index(i).Child("cluster"), w.Cluster))
		}
		seen[w.Cluster] = true
	}
	return errs
}

func oneOf[T ~string](at *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, value, allowed)}
}

func validateSelector(at *field.Path, s *metav1.LabelSelector) field.ErrorList {
	if s == nil {
		return nil
	}
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		return field.ErrorList{field.Invalid(at, metav1.FormatLabelSelector(s), err.Error())}
	}
	return nil
}

func validateTolerations(at *field.Path, list []ClusterToleration) field.ErrorList {
	var errs field.ErrorList
	if len(list) > maxTolerated {
		errs = append(errs, field.TooMany(at, len(list), maxTolerated))
	}
	for i, t := range list {
		errs = append(errs, oneOf(at.Index(i).Child("operator"), t.Operator, TolerationEqual, TolerationExists)...)
		errs = append(errs, oneOf(at.Index(i).Child("effect"), t.Effect, TaintNoSchedule, TaintNoExecute)...)
		if t.Key == "" && t.Operator != TolerationExists {
			errs = append(errs, field.Required(at.Index(i).Child("key"), "without a key the operator has to be Exists"))
		}
		if t.Operator == TolerationExists && t.Value != "" {
			errs = append(errs, field.Forbidden(at.Index(i).Child("value"), "the operator Exists takes no value"))
		}
	}
	return errs
}

func validateSurge(at *field.Path, s *intstr.IntOrString) field.ErrorList {
	if s == nil {
		return nil
	}
	if s.Type == intstr.Int && s.IntVal >= 0 && s.IntVal <= maxCount {
		return nil
	}
	if number, ok := strings.CutSuffix(s.StrVal, "%"); ok && s.Type == intstr.String {
		percent, err := strconv.Atoi(number)
		if err == nil && percent >= 0 && percent <= 100 && strconv.Itoa(percent) == number {
			return nil
		}
	}
	return field.ErrorList{field.Invalid(at, s.String(), fmt.Sprintf("a number from 0 to %d, or from 0%% to 100%%", maxCount))}
}

func validateDuration(at *field.Path, d *metav1.Duration, least time.Duration) field.ErrorList {
	if d == nil || d.Duration >= least {
		return nil
	}
	return field.ErrorList{field.Invalid(at, d.Duration.String(), fmt.Sprintf("at least %s", least))}
}

func checkNames(value string) error {
	if value != NamesRoot && value != NamesLeaf {
		return fmt.Errorf("it is %s or %s", NamesRoot, NamesLeaf)
	}
	return nil
}
