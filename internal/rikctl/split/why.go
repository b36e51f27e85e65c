package split

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/target"
)

// Explain explains the split of an object that is not an instance, for the command why.
func Explain(f *access.Factory, cmd *cobra.Command, given []string, output string) error {
	t := &tool{f}
	refs, err := t.references(cmd, given)
	if err != nil {
		return err
	}
	namespace, err := t.Namespace()
	if err != nil {
		return err
	}
	kcp, err := t.isKCP()
	if err != nil {
		return err
	}
	c, err := t.Client()
	if err != nil {
		return err
	}
	if !kcp {
		return t.whyInstances(cmd.Context(), c, refs[0], namespace)
	}
	return ofDivision(t.whyDivided(cmd.Context(), c, refs[0], namespace, output))
}

// whyDivided explains an object of a kcp.
func (t *tool) whyDivided(ctx context.Context, c client.Client, ref reference, namespace, output string) error {
	types, err := readTypes(ctx, c)
	if err != nil {
		return err
	}
	kind, isDivided := divided(types, ref.kind.GroupKind())
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(ref.kind)
	if isDivided {
		object.SetGroupVersionKind(kind.GVK)
	}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.name}, object); err != nil {
		return err
	}
	if !isDivided {
		_, err := fmt.Fprintln(t.Streams.Out, printers.EscapeTerminal(undivided(ref, object)))
		return err
	}
	role := loader.RoleOf(object, kind)
	if role == loader.Targeted {
		_, err := fmt.Fprintln(t.Streams.Out, targeted(ref, object))
		return err
	}
	if role == loader.Leaf {
		return t.whyLeaf(ctx, c, ref, kind, object, output)
	}
	return t.explain(ctx, c, kind, object, output)
}

// whyLeaf names the root of a leaf and explains that root. For a leaf that is being removed, it
// also says what the removal waits for.
func (t *tool) whyLeaf(ctx context.Context, c client.Client, ref reference, kind loader.Type, leaf *unstructured.Unstructured, output string) error {
	root, name, err := rootOf(ctx, c, kind, leaf)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s is a leaf of %s/%s: %w", ref, ref.resource, name, err)
	}
	_, uid := loader.Owner(leaf, kind)
	former := root == nil || uid != "" && uid != root.GetUID()
	text := fmt.Sprintf("%s is the leaf of %s/%s in cluster %s.", ref, ref.resource, name, leaf.GetLabels()[workloadv1alpha1.ClusterLabel])
	if there := workloadv1alpha1.NameInCluster(leaf); there != leaf.GetName() {
		text += fmt.Sprintf(" Its name there is %s.", there)
	}
	if former || leaf.GetDeletionTimestamp() != nil {
		if text, err = t.whyLeaves(ctx, c, ref, name, leaf, former); err != nil {
			return err
		}
	}
	text = printers.EscapeTerminal(text)
	if root == nil && output != "" {
		return fmt.Errorf("the split cannot be printed as %s: %s", output, text)
	}
	if root == nil {
		_, err := fmt.Fprintln(t.Streams.Out, text)
		return err
	}
	// Use the error stream, so that the output stream has only JSON.
	if _, err := fmt.Fprintln(t.Streams.ErrOut, text); err != nil {
		return err
	}
	return t.explain(ctx, c, kind, root, output)
}

// whyLeaves says why a leaf that is being removed still exists.
func (t *tool) whyLeaves(ctx context.Context, c client.Client, ref reference, root string, leaf *unstructured.Unstructured, former bool) (string, error) {
	cluster := leaf.GetLabels()[workloadv1alpha1.ClusterLabel]
	physical := &workloadv1alpha1.Cluster{}
	err := c.Get(ctx, client.ObjectKey{Name: cluster}, physical)
	if apierrors.IsNotFound(err) {
		physical, err = nil, nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the cluster %s: %w", cluster, err)
	}
	return leavingLeaf(ref, root, leaf, former, physical), nil
}

// rootOf finds the root of a leaf. If the root no longer exists, it returns nil, the name of the
// root and an error.
func rootOf(ctx context.Context, c client.Client, kind loader.Type, leaf *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	label := leaf.GetLabels()[workloadv1alpha1.OwnedByLabel]
	name, _ := loader.Owner(leaf, kind)
	owned := name != ""
	if !owned {
		name = label
	}
	root := &unstructured.Unstructured{}
	root.SetGroupVersionKind(kind.GVK)
	err := c.Get(ctx, client.ObjectKey{Namespace: leaf.GetNamespace(), Name: name}, root)
	if err == nil {
		return root, name, nil
	}
	if owned || !apierrors.IsNotFound(err) {
		return nil, name, err
	}
	// For a long name, the label differs from the name.
	all, listErr := listObjects(ctx, c, kind.GVK, leaf.GetNamespace(), "")
	if listErr != nil {
		return nil, name, listErr
	}
	for _, o := range all {
		if loader.RoleOf(o, kind) == loader.Root && splitter.OwnerLabel(o.GetName()) == label {
			return o, o.GetName(), nil
		}
	}
	return nil, name, err
}

// leavingLeaf says why a leaf still exists although its root was deleted or its cluster shall
// have no part. physical is nil if the cluster is not registered.
func leavingLeaf(ref reference, root string, leaf *unstructured.Unstructured, former bool, physical *workloadv1alpha1.Cluster) string {
	cluster := leaf.GetLabels()[workloadv1alpha1.ClusterLabel]
	text := fmt.Sprintf("%s is the leaf of %s/%s in cluster %s.", ref, ref.resource, root, cluster)
	if former {
		text = fmt.Sprintf("%s was the leaf in cluster %s of %s/%s, which has been deleted.", ref, cluster, ref.resource, root)
	}
	deleted := leaf.GetDeletionTimestamp()
	if deleted == nil {
		return text + "\nThe splitter deletes it. If it stays, check that a splitter runs (--split-types, or the program deployment-splitter)."
	}
	text += fmt.Sprintf("\nIt is marked for deletion since %s, and is deleted when cluster %s has deleted its copy.", deleted.UTC().Format(time.RFC3339), cluster)
	if physical == nil {
		return text + fmt.Sprintf("\nCluster %s is not registered: the cluster controller releases the object. If it stays, check that a cluster controller runs.", cluster)
	}
	ready := meta.FindStatusCondition(physical.Status.Conditions, workloadv1alpha1.ConditionReady)
	switch {
	case ready == nil:
		text += fmt.Sprintf("\nThe kcp has not connected to cluster %s yet.", cluster)
	case ready.Status != metav1.ConditionTrue:
		text += fmt.Sprintf("\nCluster %s is not ready since %s (%s): %s\nIts replicas there may keep running until the cluster is reachable again.",
			cluster, ready.LastTransitionTime.UTC().Format(time.RFC3339), ready.Reason, ready.Message)
	default:
		if problem := leaf.GetAnnotations()[workloadv1alpha1.ProblemAnnotationPrefix+cluster]; problem != "" {
			text += "\nIts syncer reports: " + problem
		}
		return text
	}
	return text + fmt.Sprintf("\n\"rikctl cluster unregister %s\" detaches the cluster: the object is deleted here, and its copy in the cluster stays.", cluster)
}

// explain writes the split of a root, with reasons.
func (t *tool) explain(ctx context.Context, c client.Client, kind loader.Type, root *unstructured.Unstructured, output string) error {
	s, err := readSnapshot(ctx, c, root.GetNamespace())
	if err != nil {
		return err
	}
	now := time.Now()
	w, err := loader.Read(ctx, rootSnapshot{s}, root, kind, now)
	if err != nil {
		return err
	}
	d := describeRoot(w)
	if len(w.Problems) == 0 {
		d = explained(w, splitter.Split(w.State))
	}
	if output != "" {
		return printer.Data(t.Streams.Out, d, output)
	}
	return printDivision(t.Streams.Out, &d, now)
}

// rootSnapshot is a snapshot for a single root. It reads only the leaves of that root, even if
// there are many objects.
type rootSnapshot struct{ *snapshot }

// Leaves implements loader.Source.
func (s rootSnapshot) Leaves(ctx context.Context, root *unstructured.Unstructured, t loader.Type) ([]*unstructured.Unstructured, error) {
	return listObjects(ctx, s.c, t.GVK, root.GetNamespace(), workloadv1alpha1.OwnedByLabel+"="+splitter.OwnerLabel(root.GetName()))
}

// undivided says to which clusters an object goes whose type is not split.
func undivided(ref reference, o *unstructured.Unstructured) string {
	follows := workloadv1alpha1.Follows(o.GetAnnotations())
	var labeled []string
	for _, name := range workloadv1alpha1.Targets(o.GetLabels()) {
		if !slices.Contains(follows, name) {
			labeled = append(labeled, name)
		}
	}
	var text []string
	if len(follows) > 0 {
		text = append(text, fmt.Sprintf("%s goes to %s, because objects there need it.", ref, strings.Join(follows, ", ")))
	}
	if len(labeled) > 0 {
		text = append(text, fmt.Sprintf("The labels of %s send it to %s.", ref, strings.Join(labeled, ", ")))
	}
	if len(text) == 0 {
		text = append(text, fmt.Sprintf("%s goes to no cluster: objects of this type are not split, and no object with a target needs it.", ref))
	}
	return strings.Join(text, "\n")
}

// targeted says why an object is not split although its type is.
func targeted(ref reference, o *unstructured.Unstructured) string {
	return fmt.Sprintf("%s is not split: its labels send it to %s.\nWithout these labels (%s, %sCLUSTER) it would be split.", ref,
		strings.Join(workloadv1alpha1.Targets(o.GetLabels()), ", "), workloadv1alpha1.ClusterLabel, workloadv1alpha1.TargetLabelPrefix)
}

// whyInstances explains the instances of an object in a rik cluster.
func (t *tool) whyInstances(ctx context.Context, c client.Client, ref reference, namespace string) error {
	elsewhere := clierror.WithNext(fmt.Errorf("%s is not split: %w", ref, clierror.ErrNoKCP), clierror.NextForKCP)
	if ref.resource.Group != rikv1alpha1.GroupName && ref.resource.String() != "deployments.apps" {
		return elsewhere
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(ref.kind)
	key := client.ObjectKey{Namespace: namespace, Name: ref.name}
	if err := c.Get(ctx, key, object); err != nil {
		return err
	}
	// A Deployment runs as the Workload with the same name.
	workload := &rikv1alpha1.Workload{}
	if err := c.Get(ctx, key, workload); err != nil {
		if clierror.IsUnknownType(err) || meta.IsNoMatchError(err) {
			return elsewhere
		}
		return clierror.WithNext(fmt.Errorf("%s does not run yet: %w", ref, err),
			"a controller runs it as a workload of the same name; \"rikctl describe "+ref.String()+"\" shows its conditions")
	}
	instances, err := target.Target{Workload: true, Name: workload.Name}.Instances(ctx, c, namespace)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(t.Streams.Out, "%s runs in this cluster as %d instances. To explain one of them:\n", ref, len(instances))
	table := printers.GetNewTabWriter(t.Streams.Out)
	for i := range instances {
		_, _ = fmt.Fprintf(table, "  %s why %s\t%s\t%s\n", cmdline.Program, instances[i].Name, target.PhaseOf(&instances[i]), instances[i].Spec.NodeName)
	}
	return table.Flush()
}
