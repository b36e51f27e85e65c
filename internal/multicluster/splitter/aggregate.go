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

// Part is what one leaf contributes to its root's status.
type Part struct {
	Cluster string
	// Current is whether the leaf's spec is the root's, and its status of that spec.
	Current bool
	// Behind is whether what runs has an earlier spec of the root: nothing of it is up to date.
	Behind bool
	Status map[string]any
}

// Total is what a root's status is made from.
type Total struct {
	Divide workloadv1alpha1.Division
	// Generation of the root, and Seen, which its status tells to have been observed.
	Generation, Seen int64
	Parts            []Part
	// Unplaced is how much no cluster takes; NoClusters: because there are none.
	Unplaced   int32
	NoClusters bool
	// RefusedIn is the cluster in which a whole root stays although every cluster refuses it,
	// and Refusal what that cluster says.
	RefusedIn, Refusal string
	// Refused is what is wrong with what is wished for the root, so that it is not
	// followed.
	Refused []string
}

// notSummed are the numbers of a status that are about one object.
var notSummed = []string{"observedGeneration", "collisionCount"}

// isBadNews are conditions that say, when they are true, that something is wrong.
var isBadNews = []string{"ReplicaFailure", "Failed", "FailureTarget", "Stalled", "Degraded"}

// Aggregate is a root's status: the sums of the numbers of its parts, and conditions that
// are true only if they are of every part; those that tell of trouble, if they are of one.
// Of what is in one cluster only, all else is as there.
//
// The generation counts as observed when every part is current: before, the sums are those
// of different specs, and a rollout would seem complete that has not begun.
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

// sum adds up the numbers at the top of statuses.
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

// count is what a number of a part's status contributes. A cluster counts as updated what has
// the leaf's spec; of a leaf that is behind, that is not the root's.
func (p *Part) count(name string, n int64) int64 {
	if p.Behind && strings.HasPrefix(name, "updated") {
		return 0
	}
	return n
}

// saturated is a sum, or the bound that it passes.
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

// Cap bounds the numbers at the top of a status to what counts of replicas have room for.
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

// ReasonInvalidPlacement is that of the condition of a root whose hints, or whose
// Placement, cannot be followed.
const ReasonInvalidPlacement = "InvalidPlacement"

// missing is the condition of a root that is not placed as it should be; nil if it is.
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

// RefusedText says that a whole root stays in a cluster that refuses it.
func RefusedText(cluster, refusal string) string {
	return fmt.Sprintf("no cluster takes it; it stays in %s, which says: %s", cluster, refusal)
}

// joined is one condition of all parts. The worst of them speaks for all, with its
// cluster's name; times are the latest.
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
				// All are in the one form that API servers write, which sorts as times do.
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

// conditionsOf are the conditions in an object's status.
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

// Revision is how far one leaf has come with a new spec of its root, replicas apart.
type Revision struct {
	Cluster string
	// New is whether it has the spec, Done whether that runs and is ready, and Failed
	// whether its cluster has given up on it.
	New, Done, Failed bool
	// Lost clusters are not waited for.
	Lost bool
}

// Rollout says which leaf gets the root's new spec next: one after the other by the names
// of their clusters, each when those before it are done. An empty cluster: none now; then
// waits names the one that is waited for, and paused is whether it has failed.
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
