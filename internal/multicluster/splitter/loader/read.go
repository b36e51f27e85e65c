package loader

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// Source is the storage from which a RootState is read. Callers must not change what it returns.
type Source interface {
	// Clusters returns all Clusters.
	Clusters(ctx context.Context) ([]*workloadv1alpha1.Cluster, error)
	// Placements returns the Placements of a namespace.
	Placements(ctx context.Context, namespace string) ([]*workloadv1alpha1.Placement, error)
	// Leaves returns the objects of a type in the namespace of a root that have its label
	// ([workloadv1alpha1.OwnedByLabel]) or whose controller is the root. It may return other
	// objects too.
	Leaves(ctx context.Context, root *unstructured.Unstructured, t Type) ([]*unstructured.Unstructured, error)
	// Object returns one object. If the object does not exist, the error satisfies
	// [apierrors.IsNotFound]. Metadata and status are sufficient.
	Object(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error)
	// Related returns the roots of all types in a namespace that match a query. It may return
	// other roots too.
	Related(ctx context.Context, namespace string, q Query) ([]Related, error)
	// Places returns the target clusters of the Services, ServiceAccounts and Ingresses in a
	// namespace that match a query. It is nil if no object matches.
	Places(ctx context.Context, namespace string, q Query) ([]string, error)
}

// Query selects objects of a namespace. An object matches if it matches one of the fields.
type Query struct {
	// Refs match the objects to which they refer.
	Refs []splitter.Reference
	// Pods matches objects that make pods with these labels. nil matches none.
	Pods labels.Selector
	// Services matches Services with these labels. nil matches none.
	Services labels.Selector
	// Needs match objects that need one of these, optional or not.
	Needs []splitter.Need
	// Referred matches objects that refer to this name. With ByAny, objects of any type match.
	// Otherwise only those that produce something, and autoscalers, must be found.
	Referred string
	ByAny    bool
}

func (q Query) isEmpty() bool {
	return len(q.Refs)+len(q.Needs) == 0 && q.Pods == nil && q.Services == nil && q.Referred == ""
}

// IsNeeded reports whether one of the needs of an object matches the query.
func (q Query) IsNeeded(needs []splitter.Need) bool {
	return slices.ContainsFunc(needs, func(n splitter.Need) bool { return isAmong(n, q.Needs) })
}

// Related is a root that is related to another root.
type Related struct {
	Root *unstructured.Unstructured
	Type Type
}

// RootState is a root with everything that decides its division.
type RootState struct {
	Root *unstructured.Unstructured
	Type Type
	// State is complete only if Problems is empty.
	State splitter.State
	// Division is how the root is divided.
	Division workloadv1alpha1.Division
	// Leaves are the objects of State.Leaves, in the same order.
	Leaves []*unstructured.Unstructured
	// Needs are the objects that the root needs.
	Needs []splitter.Need
	// named contains the roots to which this root refers, by reference. shares contains the
	// shares of the workloads that this root follows, by cluster.
	named  map[splitter.Reference]*RootState
	shares map[string]int64
	// scalers are the autoscalers in the kcp that refer to the root.
	scalers []*RootState
	// chosen is true if the user has chosen the division.
	chosen bool
	// Placement is the name of the Placement that counts. Others are the names of the other
	// Placements that apply.
	Placement string
	Others    []string
	// Problems are errors in the hints and the policy. While there are any, the caller must
	// change nothing.
	Problems field.ErrorList
}

// Leaf returns the object of the leaf in a cluster, or nil if the cluster has none.
func (w *RootState) Leaf(cluster string) *unstructured.Unstructured {
	for i := range w.State.Leaves {
		if w.State.Leaves[i].Cluster == cluster {
			return w.Leaves[i]
		}
	}
	return nil
}

// Read reads the state of a root.
func Read(ctx context.Context, source Source, root *unstructured.Unstructured, t Type, now time.Time) (*RootState, error) {
	w, err := readAlone(ctx, source, root, t, now)
	if err != nil {
		return nil, err
	}
	return w, w.relate(ctx, source, relateDepth)
}

// readAlone reads everything except the objects to which the root refers.
func readAlone(ctx context.Context, source Source, root *unstructured.Unstructured, t Type, now time.Time) (*RootState, error) {
	w := &RootState{Root: root, Type: t}
	w.State.Now = now
	placements, err := source.Placements(ctx, root.GetNamespace())
	if err != nil {
		return nil, fmt.Errorf("reading the placements of namespace %s: %w", root.GetNamespace(), err)
	}
	w.place(Applying(placements, root))
	clusters, err := source.Clusters(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the clusters: %w", err)
	}
	for _, c := range clusters {
		w.State.Clusters = append(w.State.Clusters, splitter.ClusterOf(c, t.GroupResource()))
	}
	w.readRoot()
	return w, w.readLeaves(ctx, source)
}

// place determines the policy of the root.
func (w *RootState) place(applying []*workloadv1alpha1.Placement) {
	var counts *workloadv1alpha1.Placement
	for i, p := range applying {
		if i == 0 {
			counts, w.Placement = p, p.Name
		} else {
			w.Others = append(w.Others, p.Name)
		}
	}
	w.State.Policy, w.chosen, w.Problems = policyOf(counts, w.Root, w.Type)
	if w.Division = w.State.Policy.Division(); w.Division == "" {
		w.Division = w.Type.Division()
	}
}

// readRoot reads the fields of the root.
func (w *RootState) readRoot() {
	w.State.Root = splitter.ReadRoot(w.Root, w.Type.Path)
	// If the progress cannot be read, it is that of a new root.
	if note := w.Root.GetAnnotations()[splitter.ProgressAnnotation]; json.Unmarshal([]byte(note), &w.State.Progress) != nil {
		w.State.Progress = splitter.Progress{}
	}
	var err error
	if w.Needs, err = w.Type.Needs(w.Root); err != nil {
		w.Problems = append(w.Problems, field.Invalid(field.NewPath("spec"), field.OmitValueType{}, err.Error()))
	}
}

// readLeaves reads the leaves, sorted by their clusters.
func (w *RootState) readLeaves(ctx context.Context, source Source) error {
	objects, err := source.Leaves(ctx, w.Root, w.Type)
	if err != nil {
		return fmt.Errorf("reading the leaves of %s: %w", w.Root.GetName(), err)
	}
	claims, err := w.claims(ctx, source)
	if err != nil {
		return err
	}
	templated := splitter.MakesClaims(w.Root)
	w.State.Progress.LeafNames = w.State.Progress.LeafNames && templated
	names := make([]string, 0, len(w.State.Clusters))
	for i := range w.State.Clusters {
		names = append(names, w.State.Clusters[i].Name)
	}
	found := map[string]*unstructured.Unstructured{}
	for _, object := range objects {
		is, former := belongs(object, w.Root, w.Type)
		cluster := clusterOf(object, w.Root.GetName(), names)
		if !is || cluster == "" {
			continue
		}
		leaf := splitter.ReadLeaf(object, w.Type.Path, w.Division)
		leaf.Cluster, leaf.Deleting = cluster, leaf.Deleting || former
		// If the user sets the replicas of the root to 0, all replicas stop, even if an
		// autoscaler sets them.
		leaf.Autoscaled = leaf.Autoscaled && w.State.Root.Replicas > 0
		leaf.Bound = slices.ContainsFunc(claims, func(c *unstructured.Unstructured) bool { return IsBound(c, cluster) }) ||
			templated && hasRun(object)
		if templated && hasRun(object) && workloadv1alpha1.NameInCluster(object) == object.GetName() {
			w.State.Progress.LeafNames = true
		}
		if !w.Type.Reports && object.GetGeneration() > 1 {
			leaf.Never = false // without a status, an earlier spec may be in the cluster
		}
		found[cluster] = object
		w.State.Leaves = append(w.State.Leaves, leaf)
	}
	slices.SortFunc(w.State.Leaves, func(a, b splitter.Leaf) int { return strings.Compare(a.Cluster, b.Cluster) })
	for i := range w.State.Leaves {
		w.Leaves = append(w.Leaves, found[w.State.Leaves[i].Cluster])
	}
	return nil
}

// hasRun reports whether a cluster has ever reported a status of a leaf. If it has, objects that
// the leaf makes there may exist, such as claims from templates.
func hasRun(leaf *unstructured.Unstructured) bool {
	status, _, _ := unstructured.NestedMap(leaf.Object, "status")
	return len(status) > 0
}

// claims returns the existing claims that the root needs.
func (w *RootState) claims(ctx context.Context, source Source) ([]*unstructured.Unstructured, error) {
	var claims []*unstructured.Unstructured
	for _, need := range w.Needs {
		if need.Kind != splitter.KindClaim {
			continue
		}
		claim, err := source.Object(ctx, corev1.SchemeGroupVersion.WithKind(need.Kind), w.Root.GetNamespace(), need.Name)
		switch {
		case err == nil:
			claims = append(claims, claim)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("reading the claim %s: %w", need.Name, err)
		}
	}
	return claims, nil
}

// IsBound reports whether a claim is bound in a cluster. A claim with several clusters has the
// status of each one in an annotation.
func IsBound(claim *unstructured.Unstructured, cluster string) bool {
	targets := workloadv1alpha1.Targets(claim.GetLabels())
	if !slices.Contains(targets, cluster) {
		return false
	}
	var status struct {
		Phase corev1.PersistentVolumeClaimPhase `json:"phase"`
	}
	if note, ok := claim.GetAnnotations()[workloadv1alpha1.StatusAnnotationPrefix+cluster]; ok {
		return json.Unmarshal([]byte(note), &status) == nil && status.Phase == corev1.ClaimBound
	}
	phase, _, _ := unstructured.NestedString(claim.Object, "status", "phase")
	return len(targets) == 1 && phase == string(corev1.ClaimBound)
}
