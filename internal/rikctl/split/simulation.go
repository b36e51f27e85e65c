package split

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// simulation describes all steps of one root until no more follow.
type simulation struct {
	Division
	// EndUnplaced is the number of replicas that no cluster accepts at the end.
	EndUnplaced int32 `json:"endUnplaced"`
	// Steps are the decisions until the end. AtRest is false if there are more than were
	// computed. The end is then the state after the last computed step.
	Steps  []simulationStep `json:"steps,omitempty"`
	AtRest bool             `json:"atRest"`
}

// simulationStep is one decision. Between two steps, the clusters execute the first one.
type simulationStep struct {
	At      metav1.Time        `json:"at"`
	Changes []simulationChange `json:"changes"`
}

// simulationChange is the effect of a step on one leaf.
type simulationChange struct {
	Action  string `json:"action"`
	Cluster string `json:"cluster"`
	From    int32  `json:"from"`
	To      int32  `json:"to"`
}

// describeSimulation describes a simulation. r is nil if the root's annotations or Placements have
// problems.
func describeSimulation(w *loader.RootState, r *splitter.Simulation) simulation {
	if r == nil {
		return simulation{Division: describeRoot(w), AtRest: true}
	}
	out := simulation{Division: explained(w, r.First), EndUnplaced: r.Last.Unplaced, AtRest: r.AtRest}
	ends := map[string]*shareEnd{}
	for _, s := range r.Last.Explanation.Clusters {
		ends[s.Cluster] = &shareEnd{string(s.Standing), s.Has, reasonsOf(s.Reasons)}
	}
	for i := range out.Clusters {
		share := &out.Clusters[i]
		if share.Gets < share.Has {
			// This step itself removes those replicas.
			share.Reasons = slices.DeleteFunc(share.Reasons, func(r divisionReason) bool { return r.Code == string(splitter.WaitsForAbsence) })
		}
		if share.End = ends[share.Cluster]; share.End == nil {
			// A removed cluster has no result at the end.
			share.End = &shareEnd{Standing: share.Standing, Reasons: share.Reasons}
		}
	}
	for _, s := range r.Steps {
		step := simulationStep{At: metav1.NewTime(s.At)}
		for _, c := range s.Changes {
			step.Changes = append(step.Changes, simulationChange{string(c.Action), c.Cluster, c.From, c.To})
		}
		out.Steps = append(out.Steps, step)
	}
	return out
}

// Ends returns the parts at the end.
func (r *simulation) Ends() map[string]int32 {
	out := map[string]int32{}
	for i := range r.Clusters {
		if s := &r.Clusters[i]; s.End != nil && s.End.Has > 0 {
			out[s.Cluster] = s.End.Has
		}
	}
	return out
}

// parts returns the present parts.
func (d *Division) parts() map[string]int32 {
	out := map[string]int32{}
	for i := range d.Clusters {
		if s := &d.Clusters[i]; s.Has > 0 {
			out[s.Cluster] = s.Has
		}
	}
	return out
}

// sameEnd reports whether two simulations of a root have the same end.
func sameEnd(a, b *simulation) bool {
	return a.EndUnplaced == b.EndUnplaced && maps.Equal(a.Ends(), b.Ends()) && slices.Equal(a.Problems, b.Problems)
}

// takes returns the time until the last step, assuming that only waiting times take time.
func (r *simulation) takes(now time.Time) time.Duration {
	if len(r.Steps) == 0 {
		return 0
	}
	return max(0, r.Steps[len(r.Steps)-1].At.Sub(now))
}

// rolledOut returns the clusters in which a part stays but is rolled out again, because fields
// of the root that its leaves copy have changed.
func rolledOut(before *unstructured.Unstructured, w *loader.RootState, r *simulation) ([]string, error) {
	var clusters []string
	ends := r.Ends()
	for _, cluster := range slices.Sorted(maps.Keys(r.parts())) {
		if ends[cluster] == 0 {
			continue
		}
		was, err := template(before, cluster, w)
		if err != nil {
			return nil, err
		}
		is, err := template(w.Root, cluster, w)
		if err != nil {
			return nil, err
		}
		if !equality.Semantic.DeepEqual(was, is) {
			clusters = append(clusters, cluster)
		}
	}
	return clusters, nil
}

// template returns a root's leaf without its part.
func template(root *unstructured.Unstructured, cluster string, w *loader.RootState) (map[string]any, error) {
	var part *int32
	if w.Division == workloadv1alpha1.DivideReplicas {
		part = new(int32)
	}
	leaf, err := splitter.Render(root, cluster, w.Type.Path, part)
	if err != nil {
		return nil, fmt.Errorf("comparing the parts of %s: %w", root.GetName(), err)
	}
	leaf.SetOwnerReferences(nil)
	return leaf.Object, nil
}
