package rikctl

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// division says of one root who gets what of it, and why. It is what -o json and yaml
// write.
type division struct {
	Namespace string `json:"namespace"`
	// Type as resource.group, Kind and Name of the root.
	Type string `json:"type"`
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Divide and Strategy as they apply; Placement is the one that was looked at, and
	// OtherPlacements would apply as well, but come after it.
	Divide          string            `json:"divide,omitempty"`
	Strategy        string            `json:"strategy,omitempty"`
	Placement       string            `json:"placement,omitempty"`
	OtherPlacements []string          `json:"otherPlacements,omitempty"`
	Hints           map[string]string `json:"hints,omitempty"`
	// Problems with what is wished: nothing is changed as long as there are some.
	Problems []string `json:"problems,omitempty"`
	// Whole is what is divided, and Unplaced how much of it no cluster takes.
	Whole    int32 `json:"whole"`
	Unplaced int32 `json:"unplaced"`
	// Surge is how many there may be above the whole while parts are moved, and
	// MovesLeft how many may still be moved in this interval; missing: any number.
	Surge     int32  `json:"surge"`
	MovesLeft *int32 `json:"movesLeft,omitempty"`
	// LookAgain is when something changes by itself.
	LookAgain *metav1.Time     `json:"lookAgain,omitempty"`
	Reasons   []divisionReason `json:"reasons,omitempty"`
	Clusters  []divisionShare  `json:"clusters"`
	// Conditions of the root that are not as one wishes.
	Conditions []string `json:"conditions,omitempty"`
}

// divisionShare is a cluster's share of a root.
type divisionShare struct {
	Cluster  string `json:"cluster"`
	Standing string `json:"standing"`
	Weight   uint64 `json:"weight"`
	// Has is its part now, Gets after the next step, and Share in the end as things are.
	Has   int32 `json:"has"`
	Gets  int32 `json:"gets"`
	Share int32 `json:"share"`
	// Ready are the replicas that are, and Most is how many can run.
	Ready int32 `json:"ready"`
	Most  int32 `json:"most"`
	// NameInCluster is what the leaf is called in the cluster, where that is another name.
	NameInCluster string `json:"nameInCluster,omitempty"`
	// Problem is what its syncer says of the leaf.
	Problem string           `json:"problem,omitempty"`
	Reasons []divisionReason `json:"reasons,omitempty"`
	// End is what the cluster has when all has come to rest; only where that was worked
	// out. Time may make it another than Share.
	End *shareEnd `json:"end,omitempty"`
}

// shareEnd is what a cluster has in the end.
type shareEnd struct {
	Standing string           `json:"standing"`
	Has      int32            `json:"has"`
	Reasons  []divisionReason `json:"reasons,omitempty"`
}

// divisionReason is one reason, by its code and in words.
type divisionReason struct {
	Code   string       `json:"code"`
	Text   string       `json:"text"`
	Number int64        `json:"number,omitempty"`
	Of     int64        `json:"of,omitempty"`
	Name   string       `json:"name,omitempty"`
	At     *metav1.Time `json:"at,omitempty"`
}

// describeRoot is what is said of a root that has problems, and the head of what is said
// of any.
func describeRoot(w *loader.World) division {
	d := division{
		Namespace: w.Root.GetNamespace(), Type: w.Type.GroupResource().String(), Kind: w.Type.GVK.Kind, Name: w.Root.GetName(),
		Divide: string(w.Division), Placement: w.Placement, OtherPlacements: w.Others,
		Hints: hintsOf(w.Root), Conditions: troubles(w.Root), Clusters: []divisionShare{},
	}
	for _, p := range w.Problems {
		d.Problems = append(d.Problems, p.Error())
	}
	return d
}

// explained is what is said of a decision.
func explained(w *loader.World, r splitter.Result) division {
	d := describeRoot(w)
	e := &r.Explanation
	if e.Divide == workloadv1alpha1.DivideReplicas {
		d.Strategy = string(e.Strategy)
	}
	d.Divide, d.Whole, d.Unplaced, d.Surge = string(e.Divide), e.Whole, e.Unplaced, e.Surge
	if e.Moves >= 0 {
		d.MovesLeft = &e.Moves
	}
	d.LookAgain = moment0(r.Next)
	d.Reasons = reasonsOf(e.Reasons)
	ready := readyParts(&w.State)
	for _, s := range e.Clusters {
		share := divisionShare{
			Cluster: s.Cluster, Standing: string(s.Standing), Weight: s.Weight, Has: s.Has, Gets: s.Gets, Share: s.Share,
			Most: s.Most, Ready: ready[s.Cluster], Reasons: reasonsOf(s.Reasons),
		}
		if leaf := w.Leaf(s.Cluster); leaf != nil {
			if name := workloadv1alpha1.NameInCluster(leaf); name != leaf.GetName() {
				share.NameInCluster = name
			}
			share.Problem = leaf.GetAnnotations()[workloadv1alpha1.ProblemAnnotationPrefix+s.Cluster]
		}
		d.Clusters = append(d.Clusters, share)
	}
	return d
}

// readyParts are how many replicas are ready in each cluster. What one said last that is
// not ready any more counts for nothing, as in the decision.
func readyParts(state *splitter.State) map[string]int32 {
	ready := map[string]int32{}
	for i := range state.Clusters {
		if c := &state.Clusters[i]; c.Ready {
			ready[c.Name] = 0
		}
	}
	for i := range state.Leaves {
		l := &state.Leaves[i]
		if _, seen := ready[l.Cluster]; seen && !l.Deleting {
			ready[l.Cluster] = l.Ready
		}
	}
	return ready
}

func reasonsOf(reasons []splitter.Reason) []divisionReason {
	var out []divisionReason
	for _, r := range reasons {
		out = append(out, divisionReason{string(r.Code), r.String(), r.Number, r.Of, r.Name, moment0(r.At)})
	}
	return out
}

// moment0 is a moment, or nothing.
func moment0(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t}
}

// hintsOf are what a root's annotations wish.
func hintsOf(root metav1.Object) map[string]string {
	hints := map[string]string{}
	for name, value := range root.GetAnnotations() {
		if strings.HasPrefix(name, workloadv1alpha1.HintPrefix) || name == workloadv1alpha1.FenceAfterAnnotation {
			hints[name] = value
		}
	}
	return hints
}

// troubles are the conditions of an object that a reader should know of.
func troubles(o *unstructured.Unstructured) []string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	var out []string
	for _, item := range list {
		c, _ := item.(map[string]any)
		text := func(key string) string { s, _ := c[key].(string); return s }
		bad := slices.Contains([]string{"ReplicaFailure", "Failed", "Stalled", "Degraded"}, text("type"))
		if c == nil || (text("status") == "True") != bad {
			continue
		}
		words := []string{text("type") + "=" + text("status")}
		words = append(words, cmp.Or(text("reason"), "-"), text("message"))
		out = append(out, strings.TrimSpace(strings.Join(words, " ")))
	}
	return out
}
