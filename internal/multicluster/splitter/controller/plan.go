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
	"rik.dev/rik/internal/multicluster/splitter/patch"
)

// fromRootAnnotation on a leaf lists the annotations that it has from its root. When the root
// loses one of them, the leaf loses it too.
const fromRootAnnotation = "splitter.workloads.kcp.dev/from-root"

// step is one write of a leaf.
type step struct {
	cluster string
	// action is empty if the step only reverts a change by another client, or sets a new spec.
	action splitter.Action
	change splitter.Change
	// have is the current leaf, or nil if the cluster has none.
	have *entry
	// object is the object to create, or to replace the current one with.
	object *unstructured.Unstructured
	// metadata and rest are a merge patch. They are used if object is nil.
	metadata, rest map[string]any
}

// plan is what a pass does with the leaves of a root.
type plan struct {
	// steps are sorted. Steps that remove something come first.
	steps []step
	// pending are the clusters whose leaves are not as desired yet.
	pending map[string]bool
	// behind are the clusters that do not run the spec of the root.
	behind map[string]bool
	// waits is the cluster for which the rollout of a new spec waits. paused is true if the
	// rollout failed there.
	waits  string
	paused bool
}

// planner creates plans. It is pure.
type planner struct {
	state   *loader.RootState
	root    *entry
	records map[string]*entry
	// outline is the root without its spec. It is the source for the metadata of leaves.
	outline *unstructured.Unstructured
	// digests are the hashes of the desired specs of leaves, if they differ from the root's.
	digests map[string]string
	// decided are the changes by cluster.
	decided map[string]splitter.Change
}

func newPlanner(w *loader.RootState, root *entry, leaves []*entry) *planner {
	p := &planner{state: w, root: root, records: map[string]*entry{}, digests: map[string]string{}, outline: &unstructured.Unstructured{Object: map[string]any{
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

// plan returns the writes that apply the changes and the current root to the leaves.
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
	for i := range p.state.State.Leaves {
		leaf := &p.state.State.Leaves[i]
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

// order sorts steps that remove something before steps that add something.
func (s step) order() int {
	if s.action == splitter.Create || s.change.To > s.change.From {
		return 1
	}
	return 0
}

// step returns the write for an existing leaf.
func (p *planner) step(leaf *splitter.Leaf, change splitter.Change, turn bool) (step, error) {
	s := step{cluster: leaf.Cluster, action: change.Action, change: change, have: p.records[leaf.Cluster]}
	switch {
	case leaf.Deleting:
		return step{}, nil
	case change.Action == splitter.Delete:
		return s, nil
	case p.isApart(leaf.Cluster) && change.Action != splitter.Note:
		return step{}, nil // the objects in a cluster that is being unregistered stay
	case change.Action == splitter.Note:
		noted := &unstructured.Unstructured{Object: map[string]any{}}
		noted.SetAnnotations(maps.Clone(s.have.GetAnnotations()))
		splitter.Stamp(noted, change)
		s.metadata = map[string]any{"annotations": patch.Difference(s.have.GetAnnotations(), noted.GetAnnotations())}
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
		s.rest = nested(p.state.Type.Path.SpecPath(), int64(change.To))
	}
	return s, nil
}

// render returns the leaf for a cluster. It uses replicas only if the root is divided by
// replicas.
func (p *planner) render(cluster string, replicas *int32) (*unstructured.Unstructured, error) {
	if p.state.Division != workloadv1alpha1.DivideReplicas {
		replicas = nil
	}
	leaf, err := splitter.Render(p.root.Unstructured, cluster, p.state.Type.Path, replicas)
	if err != nil {
		return nil, err
	}
	p.state.Adapt(leaf, cluster)
	p.annotate(leaf, cluster)
	return leaf, nil
}

// digest returns the hash of the desired spec of the leaf in a cluster. If the spec cannot be
// rendered, it is empty, which matches no leaf. The code that creates the leaf reports the error.
func (p *planner) digest(cluster string) string {
	if !p.state.IsAdapted() {
		return p.root.digest
	}
	if known, ok := p.digests[cluster]; ok {
		return known
	}
	digest := ""
	if leaf, err := p.render(cluster, nil); err == nil {
		if digest, err = splitter.Digest(leaf, p.state.Type.Path); err != nil {
			digest = ""
		}
	}
	p.digests[cluster] = digest
	return digest
}

// annotate adds the annotations of a leaf that are not on its root. These are a fence from a
// Placement, the fields that autoscalers set, the list of annotations from the root, and the name
// in the cluster.
func (p *planner) annotate(leaf *unstructured.Unstructured, cluster string) {
	notes := leaf.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	if fence := p.state.State.Policy.FenceAfter(); fence > 0 {
		notes[workloadv1alpha1.FenceAfterAnnotation] = fence.String()
	}
	if yield := p.yield(cluster); yield != "" {
		notes[workloadv1alpha1.YieldAnnotation] = yield
	}
	if len(notes) > 0 {
		notes[fromRootAnnotation] = strings.Join(slices.Sorted(maps.Keys(notes)), ",")
	}
	if name := p.state.NameIn(cluster); name != leaf.GetName() {
		notes[workloadv1alpha1.NameAnnotation] = name
	}
	if len(notes) > 0 {
		leaf.SetAnnotations(notes)
	}
}

// yield returns the fields that the leaf in a cluster yields. A leaf with 0 replicas yields only
// the fields that its root sets.
func (p *planner) yield(cluster string) string {
	change, decided := p.decided[cluster]
	none := decided && change.Action != splitter.Note && change.To == 0
	if have := p.records[cluster]; have != nil && (!decided || change.Action == splitter.Note) {
		n, said := splitter.Replicas(have.Unstructured, p.state.Type.Path)
		none = said && n == 0
	}
	if none {
		return p.root.GetAnnotations()[workloadv1alpha1.YieldAnnotation]
	}
	return p.state.Yield(cluster)
}

// replacement returns a leaf with the spec of the root that replaces the current leaf.
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
	if status, ok := have.Object["status"]; ok && !p.state.Type.Reports {
		object.Object["status"] = status
	}
	return object, nil
}

// metadata returns the desired metadata of a leaf. The labels are only those from the root. The
// annotations are those from the root and those of other clients.
func (p *planner) metadata(cluster string, have *entry, change splitter.Change) (*unstructured.Unstructured, error) {
	next, err := splitter.Render(p.outline, cluster, p.state.Type.Path, nil)
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
	// A Cluster that exists is not lost. If it is removed again, the time starts again.
	delete(notes, splitter.LostAtAnnotation)
	maps.Copy(notes, wanted)
	next.SetAnnotations(notes)
	if change.Action == splitter.Scale {
		splitter.Stamp(next, change)
	}
	next.SetOwnerReferences(owners(have.GetOwnerReferences(), next.GetOwnerReferences()[0]))
	return next, nil
}

// owners returns the owner references with the root as the controller.
func owners(have []metav1.OwnerReference, root metav1.OwnerReference) []metav1.OwnerReference {
	if slices.ContainsFunc(have, func(ref metav1.OwnerReference) bool { return reflect.DeepEqual(ref, root) }) {
		return have
	}
	others := slices.DeleteFunc(slices.Clone(have), func(ref metav1.OwnerReference) bool {
		return ref.UID == root.UID || ref.Controller != nil && *ref.Controller
	})
	return append(others, root)
}

// metadataPatch returns the merge patch of the metadata, or nil if nothing changes.
func metadataPatch(have *entry, next *unstructured.Unstructured) map[string]any {
	changed := map[string]any{}
	if changes := patch.Difference(have.GetLabels(), next.GetLabels()); len(changes) > 0 {
		changed["labels"] = changes
	}
	if changes := patch.Difference(have.GetAnnotations(), next.GetAnnotations()); len(changes) > 0 {
		changed["annotations"] = changes
	}
	if !reflect.DeepEqual(have.GetOwnerReferences(), next.GetOwnerReferences()) {
		changed["ownerReferences"] = next.GetOwnerReferences()
	}
	if len(changed) == 0 {
		return nil
	}
	return changed
}

// nested returns a map with one value at a path.
func nested(path []string, value any) map[string]any {
	for _, name := range slices.Backward(path) {
		value = map[string]any{name: value}
	}
	out, _ := value.(map[string]any)
	return out
}

// isApart reports whether a cluster was removed or is being removed.
func (p *planner) isApart(cluster string) bool {
	c := p.cluster(cluster)
	return c == nil || c.Removing
}

func (p *planner) cluster(name string) *splitter.Cluster {
	for i := range p.state.State.Clusters {
		if p.state.State.Clusters[i].Name == name {
			return &p.state.State.Clusters[i]
		}
	}
	return nil
}

// isNew reports whether a leaf has the spec of its root.
func (p *planner) isNew(leaf *splitter.Leaf) bool {
	have := p.records[leaf.Cluster]
	if have.digest != p.digest(leaf.Cluster) {
		return false
	}
	if p.state.Division == workloadv1alpha1.DivideReplicas {
		return true
	}
	replicas, said := splitter.Replicas(have.Unstructured, p.state.Type.Path)
	wanted, says := splitter.Replicas(p.root.Unstructured, p.state.Type.Path)
	return replicas == wanted && said == says
}

// behind returns the clusters that do not run the spec of the root. Either their leaf has another
// spec, or the cluster is not ready and has not received it.
func (p *planner) behind() map[string]bool {
	behind := map[string]bool{}
	for i := range p.state.State.Leaves {
		leaf := &p.state.State.Leaves[i]
		c := p.cluster(leaf.Cluster)
		behind[leaf.Cluster] = !p.isNew(leaf) || !leaf.Settled && (c == nil || !c.Ready)
	}
	return behind
}

// progressed reports whether the current spec of a leaf runs, and whether its cluster has given
// up on that spec.
func progressed(have *entry, leaf *splitter.Leaf, t loader.Type) (done, failed bool) {
	done, failed = splitter.Progressed(have.Unstructured, t.Path)
	switch {
	case !t.Reports:
		done = true // the type has no status that could confirm it
	case leaf.Autoscaled:
		// The spec does not contain the desired number of replicas.
		updated, known := splitter.Updated(have.Unstructured)
		done = leaf.Settled && leaf.Ready >= leaf.Running && (!known || updated >= leaf.Running)
	}
	return done, failed
}

// revisions returns the progress of the leaves with the spec of the root.
func (p *planner) revisions() []splitter.Revision {
	var out []splitter.Revision
	for i := range p.state.State.Leaves {
		leaf := &p.state.State.Leaves[i]
		if leaf.Deleting || p.isApart(leaf.Cluster) {
			continue
		}
		r := splitter.Revision{Cluster: leaf.Cluster, New: p.isNew(leaf), Lost: !p.cluster(leaf.Cluster).Ready}
		r.Done, r.Failed = progressed(p.records[leaf.Cluster], leaf, p.state.Type)
		out = append(out, r)
	}
	return out
}
