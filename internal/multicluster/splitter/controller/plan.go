package controller

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// fromRootAnnotation on a leaf lists the annotations that it has from its root: one that
// the root loses, the leaf loses too.
const fromRootAnnotation = "splitter.workloads.kcp.dev/from-root"

// step is one write of a leaf.
type step struct {
	cluster string
	// action is empty where only what somebody else changed is corrected, or a new spec
	// goes out.
	action splitter.Action
	change splitter.Change
	// have is the leaf as it is; nil if there is none.
	have *entry
	// object to make, or to put in the place of what there is.
	object *unstructured.Unstructured
	// metadata and rest are a merge patch, where there is no object.
	metadata, rest map[string]any
}

// plan is what a pass does with the leaves of a root.
type plan struct {
	// steps that take something away come first.
	steps []step
	// pending are the clusters whose leaves are not as they are to be yet.
	pending map[string]bool
	// behind are the clusters that do not run the root's spec.
	behind map[string]bool
	// waits is the cluster in which the new spec is waited for; paused: it failed there.
	waits  string
	paused bool
}

// planner makes plans. It is pure.
type planner struct {
	world   *loader.World
	root    *entry
	records map[string]*entry
	// outline is the root without its spec, to make the metadata of leaves from.
	outline *unstructured.Unstructured
	// digests are those of the specs that leaves are to have, where they are not the root's.
	digests map[string]string
	// decided are the changes by their clusters.
	decided map[string]splitter.Change
}

func newPlanner(w *loader.World, root *entry, leaves []*entry) *planner {
	p := &planner{world: w, root: root, records: map[string]*entry{}, digests: map[string]string{}, outline: &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": root.GetAPIVersion(), "kind": root.GetKind(), "metadata": root.Object["metadata"],
	}}}
	for i, object := range w.Leaves {
		for _, r := range leaves {
			if r.Unstructured == object {
				p.records[w.State.Leaves[i].Cluster] = r
			}
		}
	}
	return p
}

// plan says what to write so that the leaves become as was decided, and as the root is.
func (p *planner) plan(changes []splitter.Change) (*plan, error) {
	out := &plan{pending: map[string]bool{}, behind: p.behind()}
	var turn string
	turn, out.waits, out.paused = splitter.Rollout(p.revisions())
	decided := map[string]splitter.Change{}
	p.decided = decided
	for _, change := range changes {
		decided[change.Cluster] = change
		if change.Action == splitter.Create {
			object, err := p.render(change.Cluster, &change.To)
			if err != nil {
				return nil, err
			}
			splitter.Stamp(object, change)
			out.add(step{cluster: change.Cluster, action: change.Action, change: change, object: object})
		}
	}
	for i := range p.world.State.Leaves {
		leaf := &p.world.State.Leaves[i]
		s, err := p.step(leaf, decided[leaf.Cluster], turn == leaf.Cluster)
		if err != nil {
			return nil, err
		}
		out.add(s)
		if !leaf.Deleting && !p.isApart(leaf.Cluster) && !p.isNew(leaf) {
			out.pending[leaf.Cluster] = true
		}
	}
	slices.SortStableFunc(out.steps, func(a, b step) int { return a.order() - b.order() })
	return out, nil
}

func (p *plan) add(s step) {
	if s.object == nil && s.metadata == nil && s.rest == nil && s.action != splitter.Delete {
		return
	}
	p.steps = append(p.steps, s)
	p.pending[s.cluster] = true
}

// order puts what takes away before what adds.
func (s step) order() int {
	if s.action == splitter.Create || s.change.To > s.change.From {
		return 1
	}
	return 0
}

// step is what is written of a leaf that there is.
func (p *planner) step(leaf *splitter.Leaf, change splitter.Change, turn bool) (step, error) {
	s := step{cluster: leaf.Cluster, action: change.Action, change: change, have: p.records[leaf.Cluster]}
	switch {
	case leaf.Deleting:
		return step{}, nil
	case change.Action == splitter.Delete:
		return s, nil
	case p.isApart(leaf.Cluster) && change.Action != splitter.Note:
		return step{}, nil // what is in a cluster that is let go of stays as it is
	case change.Action == splitter.Note:
		noted := &unstructured.Unstructured{Object: map[string]any{}}
		noted.SetAnnotations(maps.Clone(s.have.GetAnnotations()))
		splitter.Stamp(noted, change)
		s.metadata = map[string]any{"annotations": difference(s.have.GetAnnotations(), noted.GetAnnotations())}
		return s, nil
	}
	next, err := p.metadata(leaf.Cluster, s.have, change)
	if err != nil {
		return step{}, err
	}
	if turn {
		s.object, err = p.replacement(leaf, s.have, next, change)
		return s, err
	}
	s.metadata = metadataPatch(s.have, next)
	if change.Action == splitter.Scale {
		s.rest = nested(p.world.Type.Path.SpecPath(), int64(change.To))
	}
	return s, nil
}

// render is the leaf of a cluster. Replicas count only where they are divided.
func (p *planner) render(cluster string, replicas *int32) (*unstructured.Unstructured, error) {
	if p.world.Division != workloadv1alpha1.DivideReplicas {
		replicas = nil
	}
	leaf, err := splitter.Render(p.root.Unstructured, cluster, p.world.Type.Path, replicas)
	if err != nil {
		return nil, err
	}
	p.world.Adapt(leaf, cluster)
	p.annotate(leaf, cluster)
	return leaf, nil
}

// digest stands for the spec that the leaf of a cluster is to have. It is empty, as that of no
// leaf, if there can be none; who makes the leaf hears why.
func (p *planner) digest(cluster string) string {
	if !p.world.IsAdapted() {
		return p.root.digest
	}
	if known, ok := p.digests[cluster]; ok {
		return known
	}
	digest := ""
	if leaf, err := p.render(cluster, nil); err == nil {
		if digest, err = splitter.Digest(leaf, p.world.Type.Path); err != nil {
			digest = ""
		}
	}
	p.digests[cluster] = digest
	return digest
}

// annotate adds to a leaf what is not on its root: a fence that a Placement asks for, the fields that autoscalers set,
// which annotations are from the root, and its name in the cluster.
func (p *planner) annotate(leaf *unstructured.Unstructured, cluster string) {
	notes := leaf.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	if fence := p.world.State.Policy.FenceAfter(); fence > 0 {
		notes[workloadv1alpha1.FenceAfterAnnotation] = fence.String()
	}
	if yield := p.yield(cluster); yield != "" {
		notes[workloadv1alpha1.YieldAnnotation] = yield
	}
	if len(notes) > 0 {
		notes[fromRootAnnotation] = strings.Join(slices.Sorted(maps.Keys(notes)), ",")
	}
	if name := p.world.NameIn(cluster); name != leaf.GetName() {
		notes[workloadv1alpha1.NameAnnotation] = name
	}
	if len(notes) > 0 {
		leaf.SetAnnotations(notes)
	}
}

// yield is what the leaf of a cluster gives away. One that is to have no replicas gives away no
// more than its root says.
func (p *planner) yield(cluster string) string {
	change, decided := p.decided[cluster]
	none := decided && change.Action != splitter.Note && change.To == 0
	if have := p.records[cluster]; have != nil && (!decided || change.Action == splitter.Note) {
		n, said := splitter.Replicas(have.Unstructured, p.world.Type.Path)
		none = said && n == 0
	}
	if none {
		return p.root.GetAnnotations()[workloadv1alpha1.YieldAnnotation]
	}
	return p.world.Yield(cluster)
}

// replacement is a leaf with the root's spec, in the place of the one that there is.
func (p *planner) replacement(leaf *splitter.Leaf, have *entry, next *unstructured.Unstructured, change splitter.Change) (*unstructured.Unstructured, error) {
	replicas := leaf.Replicas
	if change.Action == splitter.Scale {
		replicas = change.To
	}
	object, err := p.render(leaf.Cluster, &replicas)
	if err != nil {
		return nil, err
	}
	object.SetLabels(next.GetLabels())
	object.SetAnnotations(next.GetAnnotations())
	object.SetOwnerReferences(next.GetOwnerReferences())
	object.SetFinalizers(have.GetFinalizers())
	object.SetUID(have.GetUID())
	object.SetResourceVersion(have.GetResourceVersion())
	if status, ok := have.Object["status"]; ok && !p.world.Type.Reports {
		object.Object["status"] = status
	}
	return object, nil
}

// metadata is what the metadata of a leaf has to be: the labels are those that it has
// from its root, the annotations those and what others have noted.
func (p *planner) metadata(cluster string, have *entry, change splitter.Change) (*unstructured.Unstructured, error) {
	next, err := splitter.Render(p.outline, cluster, p.world.Type.Path, nil)
	if err != nil {
		return nil, fmt.Errorf("making the leaf for %s: %w", cluster, err)
	}
	p.annotate(next, cluster)
	wanted := next.GetAnnotations()
	notes := maps.Clone(have.GetAnnotations())
	if notes == nil {
		notes = map[string]string{}
	}
	for name := range strings.SplitSeq(notes[fromRootAnnotation], ",") {
		delete(notes, name)
	}
	delete(notes, fromRootAnnotation)
	// A cluster that is there is not lost: if it is removed again, that is another time.
	delete(notes, splitter.LostAtAnnotation)
	maps.Copy(notes, wanted)
	next.SetAnnotations(notes)
	if change.Action == splitter.Scale {
		splitter.Stamp(next, change)
	}
	next.SetOwnerReferences(owners(have.GetOwnerReferences(), next.GetOwnerReferences()[0]))
	return next, nil
}

// owners are those that there are with the root as the controller.
func owners(have []metav1.OwnerReference, root metav1.OwnerReference) []metav1.OwnerReference {
	if slices.ContainsFunc(have, func(ref metav1.OwnerReference) bool { return reflect.DeepEqual(ref, root) }) {
		return have
	}
	others := slices.DeleteFunc(slices.Clone(have), func(ref metav1.OwnerReference) bool {
		return ref.UID == root.UID || ref.Controller != nil && *ref.Controller
	})
	return append(others, root)
}

// metadataPatch is nil where nothing has to be changed.
func metadataPatch(have *entry, next *unstructured.Unstructured) map[string]any {
	patch := map[string]any{}
	if changes := difference(have.GetLabels(), next.GetLabels()); len(changes) > 0 {
		patch["labels"] = changes
	}
	if changes := difference(have.GetAnnotations(), next.GetAnnotations()); len(changes) > 0 {
		patch["annotations"] = changes
	}
	if !reflect.DeepEqual(have.GetOwnerReferences(), next.GetOwnerReferences()) {
		patch["ownerReferences"] = next.GetOwnerReferences()
	}
	if len(patch) == 0 {
		return nil
	}
	return patch
}

// nested is a map with one value at a path.
func nested(path []string, value any) map[string]any {
	for _, name := range slices.Backward(path) {
		value = map[string]any{name: value}
	}
	out, _ := value.(map[string]any)
	return out
}

// isApart says whether a cluster was removed or is being.
func (p *planner) isApart(cluster string) bool {
	c := p.cluster(cluster)
	return c == nil || c.Removing
}

func (p *planner) cluster(name string) *splitter.Cluster {
	for i := range p.world.State.Clusters {
		if p.world.State.Clusters[i].Name == name {
			return &p.world.State.Clusters[i]
		}
	}
	return nil
}

// isNew says whether a leaf has its root's spec.
func (p *planner) isNew(leaf *splitter.Leaf) bool {
	have := p.records[leaf.Cluster]
	if have.digest != p.digest(leaf.Cluster) {
		return false
	}
	if p.world.Division == workloadv1alpha1.DivideReplicas {
		return true
	}
	replicas, said := splitter.Replicas(have.Unstructured, p.world.Type.Path)
	wanted, says := splitter.Replicas(p.root.Unstructured, p.world.Type.Path)
	return replicas == wanted && said == says
}

// behind are the clusters that do not run the root's spec: their leaf has another, or has it
// and the cluster, which is not ready, has not seen it.
func (p *planner) behind() map[string]bool {
	behind := map[string]bool{}
	for i := range p.world.State.Leaves {
		leaf := &p.world.State.Leaves[i]
		c := p.cluster(leaf.Cluster)
		behind[leaf.Cluster] = !p.isNew(leaf) || !leaf.Settled && (c == nil || !c.Ready)
	}
	return behind
}

// progressed says whether a leaf's present spec runs, and whether its cluster has given up
// on it.
func progressed(have *entry, leaf *splitter.Leaf, t loader.Type) (done, failed bool) {
	done, failed = splitter.Progressed(have.Unstructured, t.Path)
	switch {
	case !t.Reports:
		done = true // nobody will ever say so
	case leaf.Autoscaled:
		// How many there are to be is not in the spec.
		updated, known := splitter.Updated(have.Unstructured)
		done = leaf.Settled && leaf.Ready >= leaf.Running && (!known || updated >= leaf.Running)
	}
	return done, failed
}

// revisions are how far the leaves have come with the root's spec.
func (p *planner) revisions() []splitter.Revision {
	var out []splitter.Revision
	for i := range p.world.State.Leaves {
		leaf := &p.world.State.Leaves[i]
		if leaf.Deleting || p.isApart(leaf.Cluster) {
			continue
		}
		r := splitter.Revision{Cluster: leaf.Cluster, New: p.isNew(leaf), Lost: !p.cluster(leaf.Cluster).Ready}
		r.Done, r.Failed = progressed(p.records[leaf.Cluster], leaf, p.world.Type)
		out = append(out, r)
	}
	return out
}
