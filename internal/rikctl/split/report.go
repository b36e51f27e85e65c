package split

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

// Division describes the split of one root, with reasons. It is the output of -o json and -o
// yaml.
type Division struct {
	Namespace string `json:"namespace"`
	// Type is resource.group of the root, Kind its kind and Name its name.
	Type string `json:"type"`
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Divide and Strategy are those in effect. Placement is the one that applies.
	// OtherPlacements match too, but have a lower rank.
	Divide          string            `json:"divide,omitempty"`
	Strategy        string            `json:"strategy,omitempty"`
	Placement       string            `json:"placement,omitempty"`
	OtherPlacements []string          `json:"otherPlacements,omitempty"`
	Hints           map[string]string `json:"hints,omitempty"`
	// Problems are mistakes in the annotations or Placements. No leaf changes while there are
	// any.
	Problems []string `json:"problems,omitempty"`
	// Whole is the number to split, and Unplaced how many of them no cluster accepts.
	Whole    int32 `json:"whole"`
	Unplaced int32 `json:"unplaced"`
	// Surge is how many replicas may exist above Whole while parts move. MovesLeft is how many
	// may still move in this interval; nil means no limit.
	Surge     int32  `json:"surge"`
	MovesLeft *int32 `json:"movesLeft,omitempty"`
	// LookAgain is the time of the next change that needs no event.
	LookAgain *metav1.Time     `json:"lookAgain,omitempty"`
	Reasons   []divisionReason `json:"reasons,omitempty"`
	Clusters  []divisionShare  `json:"clusters"`
	// Conditions lists the root's conditions that report a problem.
	Conditions []string `json:"conditions,omitempty"`
}

// divisionShare is a cluster's share of a root.
type divisionShare struct {
	Cluster  string `json:"cluster"`
	Standing string `json:"standing"`
	Weight   uint64 `json:"weight"`
	// Has is its part now, Gets the part after the next step, and Share the part at the end if
	// nothing else changes.
	Has   int32 `json:"has"`
	Gets  int32 `json:"gets"`
	Share int32 `json:"share"`
	// Ready is the number of ready replicas, and Most how many can run.
	Ready int32 `json:"ready"`
	Most  int32 `json:"most"`
	// NameInCluster is the name of the leaf in the cluster, if it differs.
	NameInCluster string `json:"nameInCluster,omitempty"`
	// Problem is the syncer's message about the leaf.
	Problem string           `json:"problem,omitempty"`
	Reasons []divisionReason `json:"reasons,omitempty"`
	// End is the cluster's part after the last step; nil if that was not computed. It may differ
	// from Share because time passes.
	End *shareEnd `json:"end,omitempty"`
}

// shareEnd is a cluster's part after the last step.
type shareEnd struct {
	Standing string           `json:"standing"`
	Has      int32            `json:"has"`
	Reasons  []divisionReason `json:"reasons,omitempty"`
}

// divisionReason is one reason, as a code and as text.
type divisionReason struct {
	Code   string       `json:"code"`
	Text   string       `json:"text"`
	Number int64        `json:"number,omitempty"`
	Of     int64        `json:"of,omitempty"`
	Name   string       `json:"name,omitempty"`
	At     *metav1.Time `json:"at,omitempty"`
}

// describeRoot fills the fields that do not depend on a decision. For a root with problems these
// are all fields.
func describeRoot(w *loader.RootState) Division {
	d := Division{
		Namespace: w.Root.GetNamespace(), Type: w.Type.GroupResource().String(), Kind: w.Type.GVK.Kind, Name: w.Root.GetName(),
		Divide: string(w.Division), Placement: w.Placement, OtherPlacements: w.Others,
		Hints: hintsOf(w.Root), Conditions: troubles(w.Root), Clusters: []divisionShare{},
	}
	for _, p := range w.Problems {
		d.Problems = append(d.Problems, p.Error())
	}
	return d
}

// explained describes a decision.
func explained(w *loader.RootState, r splitter.Result) Division {
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

// readyParts returns the number of ready replicas in each cluster. Like in the decision, a
// cluster that is not ready does not count.
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

// moment0 returns the time, or nil for the zero time.
func moment0(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t}
}

// hintsOf returns the root's annotations that influence the split.
func hintsOf(root metav1.Object) map[string]string {
	hints := map[string]string{}
	for name, value := range root.GetAnnotations() {
		if strings.HasPrefix(name, workloadv1alpha1.HintPrefix) || name == workloadv1alpha1.FenceAfterAnnotation {
			hints[name] = value
		}
	}
	return hints
}

// troubles returns the conditions of an object that report a problem.
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
