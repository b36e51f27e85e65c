package split

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kubectl/pkg/util/completion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
)

// Scenario has the supposed changes, each as the clusters that it happens to.
type Scenario struct {
	Lost, Added, Cordoned, NotReady, Removed []string
}

// NewWhatifCommand returns the command "rikctl whatif".
func NewWhatifCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	var s Scenario
	var output string
	cmd := &cobra.Command{
		Use:   "whatif [--lose-cluster NAME] [--add-cluster NAME] [TYPE/NAME ...]",
		Short: "Show what would move if clusters were added, removed or lost",
		Long: `Show how the split of objects would change on a kcp if clusters were lost, added,
cordoned, not ready or removed. The result has the final parts of each cluster, with and
without the change, and the replicas that no cluster accepts. Name objects to limit the
result to them. It is computed from the present state of the kcp. Nothing changes.

A lost cluster is not ready and sends no heartbeats. A cluster that is not ready still
sends heartbeats. A removed cluster is unregistered, and its objects stay. An added
cluster is ready and accepts the same types as the others. After =, give its labels, and
with cpu=, memory=, pods=, ephemeral-storage= or capacity.RESOURCE= the total of its
nodes.`,
		Example: cmdline.Example(`
rikctl whatif --lose-cluster east
rikctl whatif --lose-cluster east --add-cluster north=region=eu,cpu=64,memory=256Gi
rikctl whatif --cordon west deployment/web -n shop -o json`),
		ValidArgsFunction: completion.ResourceTypeAndNameCompletionFunc(t.Kube),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckOutput(cmd, output); err != nil {
				return err
			}
			if s.isEmpty() {
				return cmdline.Errorf(cmd, "a change is required: --lose-cluster, --add-cluster, --cordon, --not-ready or --remove-cluster")
			}
			return ofDivision(t.runWhatif(cmd, &s, given, output))
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&s.Lost, "lose-cluster", nil, "cluster that is lost; may be repeated, like the other flags")
	flags.StringArrayVar(&s.Added, "add-cluster", nil, "cluster to add: NAME, or NAME=LABEL=VALUE,cpu=NUMBER,...")
	flags.StringSliceVar(&s.Cordoned, "cordon", nil, "cluster that is cordoned")
	flags.StringSliceVar(&s.NotReady, "not-ready", nil, "cluster that is not ready, and sends heartbeats")
	flags.StringSliceVar(&s.Removed, "remove-cluster", nil, "cluster that is unregistered")
	for _, f := range []string{"lose-cluster", "cordon", "not-ready", "remove-cluster"} {
		_ = cmd.RegisterFlagCompletionFunc(f, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return completion.CompGetResource(t.Kube, "clusters."+workloadv1alpha1.GroupName, typed), cobra.ShellCompDirectiveNoFileComp
		})
	}
	_ = cmd.RegisterFlagCompletionFunc("add-cluster", cobra.NoFileCompletions)
	printer.AddOutput(cmd, &output)
	return cmd
}

func (s *Scenario) isEmpty() bool {
	return len(s.Lost)+len(s.Added)+len(s.Cordoned)+len(s.NotReady)+len(s.Removed) == 0
}

// Impact is the effect of a Scenario. It is the output of -o json and -o yaml.
type Impact struct {
	// Roots is the number of roots examined, and Moved the number of those with another end.
	// Replicas is how many replicas are then in other clusters. A root that is not split by
	// replicas counts as one per cluster.
	Roots    int   `json:"roots"`
	Moved    int   `json:"moved"`
	Replicas int64 `json:"replicas"`
	// Unplaced is the number of replicas of all roots that no cluster accepts at the end.
	Unplaced int64           `json:"unplaced"`
	Clusters []clusterImpact `json:"clusters"`
	Changes  []rootImpact    `json:"changes"`
}

// clusterImpact is the effect on one cluster: the sum of the parts of all examined roots now, at
// the end without the scenario, and at the end with it.
type clusterImpact struct {
	Cluster string `json:"cluster"`
	Now     int64  `json:"now"`
	Without int64  `json:"without"`
	Then    int64  `json:"then"`
	Roots   int    `json:"roots"`
}

// rootImpact is a root whose end is different in the scenario.
type rootImpact struct {
	simulation
	// Without has the parts at the end without the scenario, and WithoutUnplaced the replicas
	// that no cluster accepts then.
	Without         map[string]int32 `json:"without"`
	WithoutUnplaced int32            `json:"withoutUnplaced"`
	Then            map[string]int32 `json:"then"`
}

func (t *tool) runWhatif(cmd *cobra.Command, s *Scenario, given []string, output string) error {
	ctx := cmd.Context()
	c, err := t.kcpClient()
	if err != nil {
		return err
	}
	namespace, asked, err := t.Getter.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return err
	}
	if !asked && len(given) == 0 {
		namespace = ""
	}
	now := time.Now()
	look, err := s.predict(ctx, c, namespace, now, func(before *snapshot, types []loader.Type) ([]plannedRoot, error) {
		if len(given) == 0 {
			return allRoots(ctx, before, types)
		}
		return t.chosen(cmd, before, types, given, namespace)
	})
	if err != nil {
		return err
	}
	if output != "" {
		return printer.Data(t.Streams.Out, look, output)
	}
	return printImpact(t.Streams.Out, look, s, now)
}

// Predict returns the impact of a scenario on all roots of a namespace, or of all namespaces if
// the name is empty. The number of its requests does not depend on the number of roots.
func Predict(ctx context.Context, c client.Client, s *Scenario, namespace string) (*Impact, error) {
	return s.predict(ctx, c, namespace, time.Now(), func(before *snapshot, types []loader.Type) ([]plannedRoot, error) {
		return allRoots(ctx, before, types)
	})
}

// predict returns the impact on the roots that choose returns.
func (s *Scenario) predict(ctx context.Context, c client.Client, namespace string, now time.Time,
	choose func(before *snapshot, types []loader.Type) ([]plannedRoot, error)) (*Impact, error) {
	types, err := readTypes(ctx, c)
	if err != nil {
		return nil, err
	}
	before, err := readSnapshot(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	after := before.over()
	if err := s.apply(after, now); err != nil {
		return nil, err
	}
	roots, err := choose(before, types)
	if err != nil {
		return nil, err
	}
	return compareEnds(ctx, before, after, roots, now)
}

// allRoots returns all roots of a snapshot.
func allRoots(ctx context.Context, s *snapshot, types []loader.Type) ([]plannedRoot, error) {
	var out []plannedRoot
	for _, kind := range types {
		roots, err := s.roots(ctx, kind)
		if err != nil {
			return nil, err
		}
		for _, object := range roots {
			out = append(out, plannedRoot{object, kind})
		}
	}
	return out, nil
}

// chosen returns the roots that the arguments name.
func (t *tool) chosen(cmd *cobra.Command, s *snapshot, types []loader.Type, given []string, namespace string) ([]plannedRoot, error) {
	var out []plannedRoot
	refs, err := t.references(cmd, given)
	if err != nil {
		return nil, err
	}
	for _, ref := range refs {
		kind, is := divided(types, ref.kind.GroupKind())
		if !is {
			return nil, clierror.WithNext(fmt.Errorf("%s: objects of this type are not split", ref), "they follow the objects that need them")
		}
		like := &unstructured.Unstructured{}
		like.SetGroupVersionKind(kind.GVK)
		like.SetNamespace(namespace)
		like.SetName(ref.name)
		object, err := s.find(cmd.Context(), like)
		switch {
		case err != nil:
			return nil, err
		case object == nil:
			return nil, apierrors.NewNotFound(ref.resource, ref.name)
		case loader.RoleOf(object, kind) != loader.Root:
			return nil, clierror.WithNext(fmt.Errorf("%s is not split", ref), fmt.Sprintf("\"rikctl why %s\" explains it", ref))
		}
		out = append(out, plannedRoot{object, kind})
	}
	return out, nil
}

// apply changes the snapshot as the scenario says.
func (s *Scenario) apply(after *snapshot, now time.Time) error {
	for _, one := range s.Added {
		c, err := addedCluster(one, after.clusters, now)
		if err != nil {
			return err
		}
		after.putCluster(c)
	}
	change := func(names []string, to func(*workloadv1alpha1.Cluster)) error {
		for _, name := range names {
			found := after.cluster(name)
			if found == nil {
				return clierror.WithNext(apierrors.NewNotFound(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters").GroupResource(), name),
					`"rikctl get clusters" lists the registered clusters`)
			}
			found = found.DeepCopy()
			to(found)
			after.putCluster(found)
		}
		return nil
	}
	for _, err := range []error{
		change(s.Lost, func(c *workloadv1alpha1.Cluster) {
			turn(c, workloadv1alpha1.ConditionReady, now)
			turn(c, workloadv1alpha1.ConditionHeartbeatHealthy, now)
		}),
		change(s.NotReady, func(c *workloadv1alpha1.Cluster) { turn(c, workloadv1alpha1.ConditionReady, now) }),
		change(s.Cordoned, func(c *workloadv1alpha1.Cluster) { c.Spec.Unschedulable = true }),
		change(s.Removed, func(*workloadv1alpha1.Cluster) {}),
	} {
		if err != nil {
			return err
		}
	}
	after.clusters = slices.DeleteFunc(after.clusters, func(c *workloadv1alpha1.Cluster) bool { return slices.Contains(s.Removed, c.Name) })
	return nil
}

// turn sets a condition to False as of now, if it is not False already.
func turn(c *workloadv1alpha1.Cluster, condition string, now time.Time) {
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{
		Type: condition, Status: metav1.ConditionFalse, Reason: "Supposed", LastTransitionTime: metav1.NewTime(now),
	})
}

// capacities lists the keys that set a cluster's capacity and not a label.
var capacities = []string{"cpu", "memory", "pods", "ephemeral-storage"}

// addedCluster parses NAME=LABEL=VALUE,cpu=NUMBER,...
func addedCluster(text string, registered []*workloadv1alpha1.Cluster, now time.Time) (*workloadv1alpha1.Cluster, error) {
	refuse := func(format string, args ...any) (*workloadv1alpha1.Cluster, error) {
		return nil, cmdline.New(cmdline.Program+" whatif", fmt.Errorf("--add-cluster %q: %w", text, fmt.Errorf(format, args...)))
	}
	called, rest, _ := strings.Cut(text, "=")
	if problems := validation.IsDNS1123Label(called); len(problems) > 0 {
		return refuse("the name %q: %s", called, strings.Join(problems, "; "))
	}
	if slices.ContainsFunc(registered, func(c *workloadv1alpha1.Cluster) bool { return c.Name == called }) {
		return refuse("cluster %s already exists", called)
	}
	c := &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: called, Labels: map[string]string{}, CreationTimestamp: metav1.NewTime(now)}}
	c.Status.Allocatable = corev1.ResourceList{}
	for part := range strings.SplitSeq(rest, ",") {
		if rest == "" {
			break
		}
		key, value, ok := strings.Cut(part, "=")
		amount, isAmount := strings.CutPrefix(key, "capacity.")
		switch {
		case !ok:
			return refuse("%q is not NAME=VALUE", part)
		case isAmount || slices.Contains(capacities, key):
			q, err := resource.ParseQuantity(value)
			if err != nil {
				return refuse("%s: %w", part, err)
			}
			c.Status.Allocatable[corev1.ResourceName(amount)] = q
		default:
			if problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(problems) > 0 {
				return refuse("the label %q: %s", part, strings.Join(problems, "; "))
			}
			c.Labels[key] = value
		}
	}
	return expected(c, registered), nil
}

// compareEnds compares the ends of roots in two snapshots.
func compareEnds(ctx context.Context, before, after *snapshot, roots []plannedRoot, now time.Time) (*Impact, error) {
	look := &Impact{Roots: len(roots), Changes: []rootImpact{}, Clusters: []clusterImpact{}}
	clusters := map[string]*clusterImpact{}
	at := func(name string) *clusterImpact {
		if clusters[name] == nil {
			clusters[name] = &clusterImpact{Cluster: name}
		}
		return clusters[name]
	}
	for _, c := range slices.Concat(before.clusters, after.clusters) {
		at(c.Name)
	}
	for _, root := range roots {
		w, r, err := before.simulate(ctx, root.object, root.kind, now)
		if err != nil {
			return nil, err
		}
		without := describeSimulation(w, r)
		if w, r, err = after.simulate(ctx, root.object, root.kind, now); err != nil {
			return nil, err
		}
		then := describeSimulation(w, r)
		for name, n := range without.parts() {
			at(name).Now += int64(n)
		}
		for name, n := range without.Ends() {
			at(name).Without += int64(n)
		}
		for name, n := range then.Ends() {
			at(name).Then += int64(n)
			at(name).Roots++
		}
		look.Unplaced += int64(then.EndUnplaced)
		if !sameEnd(&without, &then) {
			look.Moved++
			look.Replicas += moved(without.Ends(), then.Ends())
			look.Changes = append(look.Changes, rootImpact{then, without.Ends(), without.EndUnplaced, then.Ends()})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		look.Clusters = append(look.Clusters, *clusters[name])
	}
	slices.SortFunc(look.Changes, func(a, b rootImpact) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	return look, nil
}

// moved returns the number of replicas that clusters gain.
func moved(from, to map[string]int32) int64 {
	var n int64
	for name, has := range to {
		n += int64(max(0, has-from[name]))
	}
	return n
}
