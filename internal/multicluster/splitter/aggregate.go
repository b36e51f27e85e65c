package splitter

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// Part is the contribution of one leaf to the status of its root.
type Part struct {
	Cluster string
	// Current is true if the leaf has the spec of the root and its status describes that spec.
	Current bool
	// Behind is true if the replicas run an earlier spec of the root. None of them counts as
	// updated.
	Behind bool
	Status map[string]any
}

// Total is the input of [Aggregate].
type Total struct {
	Divide workloadv1alpha1.Division
	// Generation is the generation of the root. Seen is the observedGeneration in the status that
	// the root has now.
	Generation, Seen int64
	Parts            []Part
	// Unplaced is the number of replicas that no cluster accepts. NoClusters is true if that is
	// because no cluster is registered.
	Unplaced   int32
	NoClusters bool
	// RefusedIn is the cluster in which an undivided root stays although every cluster refuses
	// it. Refusal is the message of that cluster.
	RefusedIn, Refusal string
	// Refused lists the errors in the hints or the Placement of the root. Because of them, the
	// splitter does not apply the hints and the Placement.
	Refused []string
}

// notSummed are the numeric status fields that describe a single object. [Aggregate] does not add
// them up.
var notSummed = []string{"observedGeneration", "collisionCount"}

// isBadNews are the condition types that report a problem when they are True.
var isBadNews = []string{"ReplicaFailure", "Failed", "FailureTarget", "Stalled", "Degraded"}

// Aggregate returns the status of a root. It adds up the numbers of the parts. A condition is
// True only if it is True for every part. A condition that reports a problem is True if it is
// True for one part. If the root has one leaf and is not divided by replicas, Aggregate copies
// all other fields from that leaf.
//
// The generation of the root counts as observed only when every part is current. Before that, the
// sums mix different specs. A rollout that has not begun would look complete.
func Aggregate(t Total) map[string]any {
	parts := slices.SortedFunc(slices.Values(t.Parts), func(a, b Part) int { return strings.Compare(a.Cluster, b.Cluster) })
	status := map[string]any{}
	if len(parts) == 1 && (t.Divide == workloadv1alpha1.DivideWhole || t.Divide == workloadv1alpha1.DivideEverywhere) {
		for name, value := range parts[0].Status {
			if n, ok := value.(int64); ok {
				value = parts[0].count(name, n)
			}
			status[name] = value
		}
	} else {
		sum(status, parts)
	}
	delete(status, "observedGeneration")
	delete(status, "conditions")
	seen := t.Generation
	for _, p := range parts {
		if !p.Current {
			seen = t.Seen
		}
	}
	if seen > 0 {
		status["observedGeneration"] = seen
	}
	if conditions := t.conditions(parts); len(conditions) > 0 {
		status["conditions"] = conditions
	}
	return status
}

// sum adds the numbers at the top level of the statuses of the parts to status.
func sum(status map[string]any, parts []Part) {
	for _, p := range parts {
		for name, value := range p.Status {
			n, ok := value.(int64)
			if !ok || slices.Contains(notSummed, name) {
				continue
			}
			before, _ := status[name].(int64)
			status[name] = saturated(before, p.count(name, n))
		}
	}
}

// count returns the contribution of a number in a part's status. The cluster counts as updated
// the replicas that have the leaf's spec. If the leaf is behind, that spec is not the root's
// spec, and the contribution is 0.
func (p *Part) count(name string, n int64) int64 {
	if p.Behind && strings.HasPrefix(name, "updated") {
		return 0
	}
	return n
}

// saturated returns a + b. On overflow it returns the limit of int64.
func saturated(a, b int64) int64 {
	switch n := a + b; {
	case a > 0 && b > 0 && n < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && n >= 0:
		return math.MinInt64
	default:
		return n
	}
}

// Cap limits the numbers at the top level of a status to the range of int32. Fields that count
// replicas have that type.
func Cap(status map[string]any) {
	for name, value := range status {
		if n, ok := value.(int64); ok && !slices.Contains(notSummed, name) {
			status[name] = min(max(n, math.MinInt32), math.MaxInt32)
		}
	}
}

func (t Total) conditions(parts []Part) []any {
	byType := map[string]bool{}
	for _, p := range parts {
		for _, c := range conditionsOf(map[string]any{"status": p.Status}) {
			if name, ok := c["type"].(string); ok {
				byType[name] = true
			}
		}
	}
	missing := t.missing()
	if missing != nil {
		delete(byType, "Progressing")
	}
	var conditions []any
	for _, name := range slices.Sorted(maps.Keys(byType)) {
		conditions = append(conditions, joined(name, parts))
	}
	if missing != nil {
		conditions = append(conditions, missing)
	}
	return conditions
}

// ReasonInvalidPlacement is the reason of the condition on a root whose hints or whose Placement
// cannot be applied.
const ReasonInvalidPlacement = "InvalidPlacement"

// missing returns the condition of a root that is not placed as requested. It returns nil if the
// root is placed as requested.
func (t Total) missing() map[string]any {
	switch {
	case len(t.Refused) > 0:
		return map[string]any{"type": "Progressing", "status": "False", "reason": ReasonInvalidPlacement, "message": strings.Join(t.Refused, "; ")}
	case t.NoClusters:
		return map[string]any{"type": "Progressing", "status": "False", "reason": string(NoClusters), "message": texts[NoClusters]}
	case t.RefusedIn != "":
		return map[string]any{"type": "Progressing", "status": "False", "reason": string(RefusedEverywhere), "message": RefusedText(t.RefusedIn, t.Refusal)}
	case t.Unplaced > 0:
		return map[string]any{"type": "Progressing", "status": "False", "reason": string(NothingTakesParts),
			"message": Reason{Code: NothingTakesParts, Number: int64(t.Unplaced)}.String()}
	}
	return nil
}

// RefusedText is the message for an undivided root that stays in a cluster that refuses it.
func RefusedText(cluster, refusal string) string {
	return fmt.Sprintf("no cluster takes it; it stays in %s, which says: %s", cluster, refusal)
}

// joined merges one condition of all parts. The part with the worst value determines the status,
// the reason and the message, and the message contains the name of its cluster. The times are the
// latest of all parts.
func joined(name string, parts []Part) map[string]any {
	order := []string{"True", "Unknown", "False"}
	if slices.Contains(isBadNews, name) {
		order = []string{"False", "Unknown", "True"}
	}
	worst, out := -1, map[string]any{}
	times := map[string]string{}
	for _, p := range parts {
		c := conditionOf(p, name)
		if c == nil {
			if slices.Contains(isBadNews, name) {
				continue
			}
			c = map[string]any{"type": name, "status": "Unknown", "reason": "NotReported", "message": "it says nothing of this"}
		}
		said, _ := c["status"].(string)
		rank := max(slices.Index(order, said), 0)
		if !slices.Contains(order, said) {
			said, rank = "Unknown", 1
		}
		for _, field := range []string{"lastTransitionTime", "lastUpdateTime"} {
			if at, ok := c[field].(string); ok {
				// API servers write all times in one format. The text sorts in the order of time.
				times[field] = max(times[field], at)
			}
		}
		if rank <= worst {
			continue
		}
		worst = rank
		out = map[string]any{"type": name, "status": said}
		if reason, ok := c["reason"].(string); ok {
			out["reason"] = reason
		}
		if message, ok := c["message"].(string); ok {
			out["message"] = fmt.Sprintf("%s: %s", p.Cluster, message)
		}
	}
	for field, at := range times {
		out[field] = at
	}
	return out
}

func conditionOf(p Part, name string) map[string]any {
	for _, c := range conditionsOf(map[string]any{"status": p.Status}) {
		if c["type"] == name {
			return c
		}
	}
	return nil
}

// conditionsOf returns the conditions in the status of an object.
func conditionsOf(object map[string]any) []map[string]any {
	status, _ := object["status"].(map[string]any)
	list, _ := status["conditions"].([]any)
	var conditions []map[string]any
	for _, entry := range list {
		if c, ok := entry.(map[string]any); ok {
			conditions = append(conditions, c)
		}
	}
	return conditions
}

// Revision is the progress of one leaf with a new spec of its root. The number of replicas is not
// part of that spec.
type Revision struct {
	Cluster string
	// New is true if the leaf has the spec. Done is true if replicas with that spec run and are
	// ready. Failed is true if the cluster has given up on the spec.
	New, Done, Failed bool
	// Lost is true if the cluster is lost. The rollout does not wait for it.
	Lost bool
}

// Rollout returns the cluster whose leaf gets the new spec of the root next. The leaves get it
// one after the other, in the order of the names of their clusters. Each waits until the leaves
// before it are done. If cluster is empty, no leaf gets it now. Then waits is the cluster that
// the rollout waits for, and paused is true if that cluster has failed.
func Rollout(leaves []Revision) (cluster, waits string, paused bool) {
	leaves = slices.SortedFunc(slices.Values(leaves), func(a, b Revision) int { return cmp.Compare(a.Cluster, b.Cluster) })
	for _, l := range leaves {
		if l.New && !l.Done && !l.Lost {
			return "", l.Cluster, l.Failed
		}
	}
	for _, l := range leaves {
		if !l.New {
			return l.Cluster, "", false
		}
	}
	return "", "", false
}
