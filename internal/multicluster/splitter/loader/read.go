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

// Source is where a World is read from. Nothing that it returns is changed.
type Source interface {
	// Clusters are all that there are.
	Clusters(ctx context.Context) ([]*workloadv1alpha1.Cluster, error)
	// Placements are those of a namespace.
	Placements(ctx context.Context, namespace string) ([]*workloadv1alpha1.Placement, error)
	// Leaves are the objects of a type, in the namespace of a root, that have its label
	// ([workloadv1alpha1.OwnedByLabel]) or have it as their controller. More than these
	// do no harm.
	Leaves(ctx context.Context, root *unstructured.Unstructured, t Type) ([]*unstructured.Unstructured, error)
	// Object is one object; the error says if there is none ([apierrors.IsNotFound]).
	// Metadata and status are enough.
	Object(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error)
	// Related are the roots of a namespace, of all types, that one asks for. More than these do
	// no harm.
	Related(ctx context.Context, namespace string, q Query) ([]Related, error)
	// Places are the clusters to which those Services, ServiceAccounts and Ingresses of a
	// namespace are sent that one asks for.
	Places(ctx context.Context, namespace string, q Query) ([]string, error)
}

// Query says which objects of a namespace one asks for: those that fit one of its fields.
type Query struct {
	// Refs are to the objects.
	Refs []splitter.Reference
	// Pods are made by the objects; nil selects none.
	Pods labels.Selector
	// Services are the objects; nil selects none.
	Services labels.Selector
	// Needs of the objects are among these, optional or not.
	Needs []splitter.Need
	// Referred is a name that the objects refer to. With ByAny objects of any type count; else
	// only those that produce something, and autoscalers, need to be known.
	Referred string
	ByAny    bool
}

func (q Query) isEmpty() bool {
	return len(q.Refs)+len(q.Needs) == 0 && q.Pods == nil && q.Services == nil && q.Referred == ""
}

// IsNeeded reports whether one of an object's needs is asked for.
func (q Query) IsNeeded(needs []splitter.Need) bool {
	return slices.ContainsFunc(needs, func(n splitter.Need) bool { return isAmong(n, q.Needs) })
}

// Related is a root that another one is about.
type Related struct {
	Root *unstructured.Unstructured
	Type Type
}

// World is a root with what its division is decided from.
type World struct {
	Root *unstructured.Unstructured
	Type Type
	// State is complete only without Problems.
	State splitter.State
	// Division is how the root is divided.
	Division workloadv1alpha1.Division
	// Leaves are the objects of State.Leaves, in the same order.
	Leaves []*unstructured.Unstructured
	// Needs are the objects that the root names.
	Needs []splitter.Need
	// named are the roots by what refers to them, and shares of the workloads that the root is
	// about, by cluster.
	named  map[splitter.Reference]*World
	shares map[string]int64
	// scalers are the autoscalers of the kcp that refer to the root.
	scalers []*World
	// chosen is whether the way of dividing was wished for.
	chosen bool
	// Placement that counts, and Others that would apply as well; all names.
	Placement string
	Others    []string
	// Problems with what is wished: nothing is to be changed as long as there are some.
	Problems field.ErrorList
}

// Leaf is the object of a cluster's leaf; nil if there is none.
func (w *World) Leaf(cluster string) *unstructured.Unstructured {
	for i := range w.State.Leaves {
		if w.State.Leaves[i].Cluster == cluster {
			return w.Leaves[i]
		}
	}
	return nil
}

// Read reads what there is of a root.
func Read(ctx context.Context, source Source, root *unstructured.Unstructured, t Type, now time.Time) (*World, error) {
	w, err := readAlone(ctx, source, root, t, now)
	if err != nil {
		return nil, err
	}
	return w, w.relate(ctx, source, relateDepth)
}

// readAlone reads all but what the root refers to.
func readAlone(ctx context.Context, source Source, root *unstructured.Unstructured, t Type, now time.Time) (*World, error) {
	w := &World{Root: root, Type: t}
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

// place finds what is wished for the root.
func (w *World) place(applying []*workloadv1alpha1.Placement) {
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

// readRoot reads what the root says of itself.
func (w *World) readRoot() {
	w.State.Root = splitter.ReadRoot(w.Root, w.Type.Path)
	// A progress that cannot be read is that of a root that has just begun.
	if note := w.Root.GetAnnotations()[splitter.ProgressAnnotation]; json.Unmarshal([]byte(note), &w.State.Progress) != nil {
		w.State.Progress = splitter.Progress{}
	}
	var err error
	if w.Needs, err = w.Type.Needs(w.Root); err != nil {
		w.Problems = append(w.Problems, field.Invalid(field.NewPath("spec"), field.OmitValueType{}, err.Error()))
	}
}

// readLeaves reads the leaves, in the order of their clusters.
func (w *World) readLeaves(ctx context.Context, source Source) error {
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
		// Who scales a root to nothing has all of it stop, whoever sets the replicas otherwise.
		leaf.Autoscaled = leaf.Autoscaled && w.State.Root.Replicas > 0
		leaf.Bound = slices.ContainsFunc(claims, func(c *unstructured.Unstructured) bool { return IsBound(c, cluster) }) ||
			templated && hasRun(object)
		if templated && hasRun(object) && workloadv1alpha1.NameInCluster(object) == object.GetName() {
			w.State.Progress.LeafNames = true
		}
		if !w.Type.Reports && object.GetGeneration() > 1 {
			leaf.Never = false // without a status nothing tells whether an earlier spec is in the cluster
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

// hasRun says whether a cluster has ever said anything of a leaf: what the leaf makes there,
// claims from templates above all, may then exist.
func hasRun(leaf *unstructured.Unstructured) bool {
	status, _, _ := unstructured.NestedMap(leaf.Object, "status")
	return len(status) > 0
}

// claims are those that the root names and that there are.
func (w *World) claims(ctx context.Context, source Source) ([]*unstructured.Unstructured, error) {
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

// IsBound says whether a claim is bound in a cluster. A claim of several clusters keeps
// what each says in an annotation.
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
