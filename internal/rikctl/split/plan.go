package split

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/manifest"
	"rik.dev/rik/internal/rikctl/printer"
)

// Plan is the plan for one root. It is an item of the output of -o json and -o yaml.
type Plan struct {
	simulation
	// File says how the files change the object itself.
	File string `json:"file"`
	// RolledOut lists the clusters in which the existing part is rolled out again.
	RolledOut []string `json:"rolledOut,omitempty"`
	// Needs lists the objects that follow the root to the clusters.
	Needs []plannedNeed `json:"needs,omitempty"`
}

// plannedNeed is an object that follows the root.
type plannedNeed struct {
	Kind     string   `json:"kind"`
	Name     string   `json:"name"`
	Optional bool     `json:"optional,omitempty"`
	Missing  bool     `json:"missing,omitempty"`
	Clusters []string `json:"clusters,omitempty"`
}

// The ways in which files change an object.
const (
	fileNew       = "new"
	fileChanged   = "changed"
	fileUnchanged = "unchanged"
	fileNotIn     = "not in the files"
)

// changes reports whether anything would happen.
func (p *Plan) changes() bool {
	return p.File == fileNew || len(p.Steps) > 0 || len(p.RolledOut) > 0 || !maps.Equal(p.parts(), p.Ends())
}

// NewPlanCommand returns the command "rikctl plan".
func NewPlanCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	var files []string
	var output string
	cmd := &cobra.Command{
		Use:   "plan -f FILE",
		Short: "Show how applying files would change the split over clusters",
		Long: `Show what would happen on a kcp if files were applied. For each object that is split over
clusters, show its parts NOW, its parts after the NEXT step, and its parts THEN, after the
last step. Also show the reasons, and the objects that follow it to its clusters. For a
Placement or a Cluster in the files, also show the other objects that it changes. Nothing
changes: the server validates the objects as with "rikctl apply", and stores nothing.

The plan makes three assumptions. A Cluster that is not registered yet is ready and accepts
the same types as the others. Ready clusters do what is requested. Clusters that are not
ready stay not ready.

The exit code is 0 if nothing would change, 1 if something would change, and above 1 on
an error.`,
		Example: cmdline.Example(`
rikctl plan -f web.yaml
rikctl plan -f manifests/ -o json
rikctl plan -f placement.yaml && echo nothing would change
cat web.yaml | rikctl plan -f -`),
		Args: cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return cmdline.Errorf(cmd, "-f FILE is required")
			}
			if err := printer.CheckOutput(cmd, output); err != nil {
				return err
			}
			changes, err := t.runPlan(cmd.Context(), files, output)
			switch {
			case err != nil:
				return clierror.AboveOneOf(ofDivision(err))
			case changes:
				return clierror.CodeError{Code: clierror.ExitError}
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file or directory to apply; - for the standard input")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json")
	printer.AddOutput(cmd, &output)
	return cmd
}

// runPlan prints a plan. It reports whether anything would change.
func (t *tool) runPlan(ctx context.Context, files []string, output string) (bool, error) {
	documents, err := manifest.Read(files, t.Streams.In)
	if err != nil {
		return false, err
	}
	c, err := t.kcpClient()
	if err != nil {
		return false, err
	}
	namespace, strict, err := t.Getter.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return false, err
	}
	trial := &trial{c: c, namespace: namespace, strict: strict, warn: t.Streams.ErrOut}
	objects, err := trial.read(documents)
	if err != nil {
		return false, err
	}
	types, err := readTypes(ctx, c)
	if err != nil {
		return false, err
	}
	p := &planner{types: types, now: time.Now(), plans: []Plan{}}
	if p.before, err = readSnapshot(ctx, c, spaces(objects)...); err != nil {
		return false, err
	}
	if err := p.lay(ctx, trial, objects); err != nil {
		return false, err
	}
	if err := p.plan(ctx); err != nil {
		return false, err
	}
	if output != "" {
		err = printer.Data(t.Streams.Out, p.plans, output)
	} else {
		err = printPlans(t.Streams.Out, p)
	}
	if err != nil {
		return false, err
	}
	return p.changes(), p.problems()
}

// spaces returns the namespaces that a plan reads: those of the objects, or all if a Cluster is
// among the objects, because any root may go to it.
func spaces(objects []fileObject) []string {
	for _, o := range objects {
		if o.GroupVersionKind().GroupKind() == clusterKind {
			return []string{""}
		}
	}
	return namespacesOf(objects)
}

var (
	clusterKind   = workloadv1alpha1.SchemeGroupVersion.WithKind("Cluster").GroupKind()
	namespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind()
	placementKind = workloadv1alpha1.SchemeGroupVersion.WithKind("Placement").GroupKind()
	serviceKind   = corev1.SchemeGroupVersion.WithKind("Service")
	claimKind     = corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")
)

// planner compares the present state with the state after applying the files.
type planner struct {
	types         []loader.Type
	now           time.Time
	before, after *snapshot
	// roots are the roots in the files. files has every object in the files, as
	// KIND/NAMESPACE/NAME.
	roots []plannedRoot
	files map[string]bool
	// affected lists the namespaces in which other roots may change; an empty name means all.
	affected []string
	plans    []Plan
	// notes are about objects that are not split. leaving is set if one of them was split before
	// and loses its parts.
	notes   []string
	leaving bool
}

type plannedRoot struct {
	object *unstructured.Unstructured
	kind   loader.Type
}

// lay builds the snapshot in which the files have been applied.
func (p *planner) lay(ctx context.Context, trial *trial, objects []fileObject) error {
	p.after = p.before.over()
	p.files = map[string]bool{}
	for _, o := range objects {
		p.files[fileKey(o.GetKind(), o.GetNamespace(), o.GetName())] = true
		if err := p.layOne(ctx, trial, o); err != nil {
			return err
		}
	}
	return nil
}

func fileKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

func (p *planner) layOne(ctx context.Context, trial *trial, o fileObject) error {
	group := o.GroupVersionKind().GroupKind()
	kind, isDivided := divided(p.types, group)
	followed := o.GroupVersionKind() == serviceKind || o.GroupVersionKind() == claimKind
	if !isDivided && !followed && group != clusterKind && group != placementKind {
		return nil
	}
	object, err := trial.apply(ctx, o)
	if err != nil {
		return err
	}
	switch group {
	case clusterKind:
		c, err := convert[workloadv1alpha1.Cluster](object)
		if err != nil {
			return clierror.InvalidError{Source: o.source, Err: err}
		}
		if p.before.cluster(c.Name) == nil {
			p.notes = append(p.notes, fmt.Sprintf("cluster %s is not registered; the plan assumes that it is ready and accepts the same types as the others", c.Name))
		}
		p.after.putCluster(expected(c, p.before.clusters))
		p.affected = []string{""}
		return nil
	case placementKind:
		placement, err := convert[workloadv1alpha1.Placement](object)
		if err != nil {
			return clierror.InvalidError{Source: o.source, Err: err}
		}
		p.after.putPlacement(placement)
		p.affected = append(p.affected, placement.Namespace)
		return nil
	}
	if isDivided {
		object.SetGroupVersionKind(kind.GVK)
		if err := p.addRoot(ctx, object, kind, o.source); err != nil {
			return err
		}
	}
	return p.after.put(ctx, object)
}

// addRoot adds an object of the files if it is a root, or was one.
func (p *planner) addRoot(ctx context.Context, object *unstructured.Unstructured, kind loader.Type, source string) error {
	switch loader.RoleOf(object, kind) {
	case loader.Leaf:
		owner, _ := loader.Owner(object, kind)
		return clierror.InvalidError{Source: source, Err: fmt.Errorf("%s is a leaf of %s; change the root", object.GetName(), owner)}
	case loader.Targeted:
		targets := strings.Join(workloadv1alpha1.Targets(object.GetLabels()), ", ")
		note := fmt.Sprintf("%s/%s is not split: its labels send it to %s", strings.ToLower(kind.GVK.Kind), object.GetName(), targets)
		live, err := p.before.find(ctx, object)
		if err != nil {
			return err
		}
		if live != nil && loader.RoleOf(live, kind) == loader.Root {
			note += "; the kcp would delete its present leaves"
			p.leaving = true
		}
		p.notes = append(p.notes, note)
		return nil
	}
	p.roots = append(p.roots, plannedRoot{object, kind})
	return nil
}

// plan computes the changes of the roots in the files, and of other roots that change.
func (p *planner) plan(ctx context.Context) error {
	done := map[string]bool{}
	for _, root := range p.roots {
		one, err := p.planOne(ctx, root)
		if err != nil {
			return err
		}
		done[root.kind.GroupResource().String()+fileKey("", root.object.GetNamespace(), root.object.GetName())] = true
		p.plans = append(p.plans, *one)
	}
	if len(p.affected) == 0 {
		return nil
	}
	for _, kind := range p.types {
		roots, err := p.before.roots(ctx, kind)
		if err != nil {
			return err
		}
		for _, object := range roots {
			if done[kind.GroupResource().String()+fileKey("", object.GetNamespace(), object.GetName())] || !p.mayAffect(object.GetNamespace()) {
				continue
			}
			if err := p.planOther(ctx, plannedRoot{object, kind}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *planner) mayAffect(namespace string) bool {
	return slices.Contains(p.affected, "") || slices.Contains(p.affected, namespace)
}

// planOne plans a root of the files.
func (p *planner) planOne(ctx context.Context, root plannedRoot) (*Plan, error) {
	live, err := p.before.find(ctx, root.object)
	if err != nil {
		return nil, err
	}
	w, r, err := p.after.simulate(ctx, root.object, root.kind, p.now)
	if err != nil {
		return nil, err
	}
	one := &Plan{simulation: describeSimulation(w, r), File: fileNew}
	if live != nil {
		one.File = fileUnchanged
		if !samePlacement(live, root.object) {
			one.File = fileChanged
		}
		if one.RolledOut, err = rolledOut(live, w, &one.simulation); err != nil {
			return nil, err
		}
	}
	if len(w.Problems) == 0 {
		one.Needs, err = p.needs(ctx, w, slices.Sorted(maps.Keys(one.Ends())))
	}
	return one, err
}

// samePlacement reports whether two objects ask for the same.
func samePlacement(a, b *unstructured.Unstructured) bool {
	wish := func(o *unstructured.Unstructured) map[string]any {
		out := maps.Clone(o.Object)
		delete(out, "status")
		delete(out, "metadata")
		out["labels"], out["annotations"] = o.GetLabels(), o.GetAnnotations()
		return out
	}
	return equality.Semantic.DeepEqual(wish(a), wish(b))
}

// planOther plans a root that is not in the files, if they affect it.
func (p *planner) planOther(ctx context.Context, root plannedRoot) error {
	w, r, err := p.before.simulate(ctx, root.object, root.kind, p.now)
	if err != nil {
		return err
	}
	without := describeSimulation(w, r)
	if w, r, err = p.after.simulate(ctx, root.object, root.kind, p.now); err != nil {
		return err
	}
	one := &Plan{simulation: describeSimulation(w, r), File: fileNotIn}
	if sameEnd(&without, &one.simulation) {
		return nil
	}
	one.Needs, err = p.needs(ctx, w, slices.Sorted(maps.Keys(one.Ends())))
	p.plans = append(p.plans, *one)
	return err
}

// needs returns the followers of a root: the objects that it names, and the Services that send
// traffic to it.
func (p *planner) needs(ctx context.Context, w *loader.RootState, clusters []string) ([]plannedNeed, error) {
	var out []plannedNeed
	namespace := w.Root.GetNamespace()
	for _, n := range w.Needs {
		missing := false
		if !p.files[fileKey(n.Kind, namespace, n.Name)] {
			is, err := p.before.exists(ctx, n.Kind, namespace, n.Name)
			if err != nil {
				return nil, err
			}
			missing = !is
		}
		out = append(out, plannedNeed{n.Kind, n.Name, n.Optional, missing, clusters})
	}
	services, err := p.after.list(ctx, serviceKind)
	if err != nil {
		return nil, err
	}
	for _, service := range services.all {
		named := slices.ContainsFunc(w.Needs, func(n splitter.Need) bool { return n.Kind == serviceKind.Kind && n.Name == service.GetName() })
		if !named && splitter.Selects(service, w.Root) {
			out = append(out, plannedNeed{Kind: serviceKind.Kind, Name: service.GetName(), Clusters: clusters})
		}
	}
	return out, nil
}

// changes reports whether anything would happen.
func (p *planner) changes() bool {
	return p.leaving || slices.ContainsFunc(p.plans, func(one Plan) bool { return one.changes() })
}

// problems returns the mistakes in the annotations and Placements of the roots in the files.
func (p *planner) problems() error {
	for i := range p.plans {
		if one := &p.plans[i]; len(one.Problems) > 0 && one.File != fileNotIn {
			return clierror.WithNext(clierror.InvalidError{Source: one.title(), Err: fmt.Errorf("%s", strings.Join(one.Problems, "; "))},
				"the kcp accepts the object, and changes no leaf of it until this is corrected")
		}
	}
	return nil
}
