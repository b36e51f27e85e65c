package rikctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// kindWords maps words on the command line to kinds of workloads.
var kindWords = map[string]rikv1alpha1.WorkloadKind{
	"app": rikv1alpha1.KindApp, "apps": rikv1alpha1.KindApp,
	"function": rikv1alpha1.KindFunction, "functions": rikv1alpha1.KindFunction, "fn": rikv1alpha1.KindFunction,
}

// ofKind parses "apps", "app NAME..." and "app/NAME...". ok is false if the arguments name
// another type.
func ofKind(given []string) (kind rikv1alpha1.WorkloadKind, names []string, ok bool) {
	if len(given) == 0 {
		return "", nil, false
	}
	if kind, ok = kindWords[given[0]]; ok {
		return kind, given[1:], true
	}
	for i, arg := range given {
		word, name, typed := strings.Cut(arg, "/")
		k, known := kindWords[word]
		if !typed || !known || i > 0 && k != kind {
			return "", nil, false
		}
		kind, names = k, append(names, name)
	}
	return kind, names, true
}

// plural returns the plural of a kind in lower case.
func plural(kind rikv1alpha1.WorkloadKind) string { return strings.ToLower(string(kind)) + "s" }

// workloadsOf returns the workloads of a kind: all of them, or those with the given names. A
// name is the object's name or the name that a deployment file has under metadata.
func workloadsOf(ctx context.Context, c client.Client, kind rikv1alpha1.WorkloadKind, names []string, options ...client.ListOption) ([]rikv1alpha1.Workload, error) {
	list := &rikv1alpha1.WorkloadList{}
	if err := c.List(ctx, list, options...); err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(list.Items, func(w rikv1alpha1.Workload) bool { return w.Spec.Kind != kind })
	if len(names) == 0 {
		return all, nil
	}
	var found []rikv1alpha1.Workload
	var problems []error
	for _, n := range names {
		at := slices.IndexFunc(all, func(w rikv1alpha1.Workload) bool { return w.Name == n })
		if at < 0 {
			at = slices.IndexFunc(all, func(w rikv1alpha1.Workload) bool { return n != "" && w.Annotations[metadataPrefix+"name"] == n })
		}
		if at < 0 {
			problems = append(problems, advised{apierrors.NewNotFound(rikv1alpha1.Resource(plural(kind)), n),
				fmt.Sprintf("\"rikctl get %s\" lists them; \"rikctl get workloads\" lists every kind", plural(kind))})
			continue
		}
		found = append(found, all[at])
	}
	return found, errors.Join(problems...)
}

// getOfKind implements "get apps" and "get functions".
func (t *tool) getOfKind(cmd *cobra.Command, kind rikv1alpha1.WorkloadKind, names []string) error {
	flags := cmd.Flags()
	output, _ := flags.GetString("output")
	everywhere, _ := flags.GetBool("all-namespaces")
	selector, _ := flags.GetString("selector")
	headless, _ := flags.GetBool("no-headers")
	for _, other := range []string{"watch-only", "field-selector", "filename", "subresource", "raw", "sort-by", "template", "show-labels", "label-columns"} {
		if flags.Changed(other) {
			return usagef(cmd, "--%s is not for %s: \"%s get workloads\" has it", other, plural(kind), name)
		}
	}
	if !slices.Contains([]string{"", "wide", "name", "json", "yaml"}, output) {
		return usagef(cmd, "-o %s is not for %s: it is wide, name, json or yaml; \"%s get workloads\" has the others", output, plural(kind), name)
	}
	watching, _ := flags.GetBool("watch")
	if watching && output != "" && output != "wide" {
		return usagef(cmd, "-o %s does not go with --watch for %s: \"%s get workloads\" has it", output, plural(kind), name)
	}
	c, err := t.client()
	if err != nil {
		return err
	}
	namespace, err := t.namespace()
	if err != nil {
		return err
	}
	if everywhere {
		namespace = ""
	}
	parsed, err := metav1.ParseToLabelSelector(selector)
	if err != nil {
		return usageError{cmd.CommandPath(), err}
	}
	labels, err := metav1.LabelSelectorAsSelector(parsed)
	if err != nil {
		return usageError{cmd.CommandPath(), err}
	}
	options := []client.ListOption{client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: labels}}
	if watching {
		return t.followOfKind(cmd.Context(), c, kind, names, style{output, namespace, everywhere, headless, false}, options...)
	}
	found, missing := workloadsOf(cmd.Context(), c, kind, names, options...)
	if missing != nil && len(found) == 0 {
		return missing // the error, because the names may exist all the same
	}
	if err := t.printOfKind(cmd.Context(), c, kind, found, style{output, namespace, everywhere, headless, len(names) == 1}); err != nil {
		return errors.Join(missing, err)
	}
	return missing
}

// style says how to print a list.
type style struct {
	output, namespace    string
	everywhere, headless bool
	single               bool
}

func (t *tool) printOfKind(ctx context.Context, c client.Client, kind rikv1alpha1.WorkloadKind, found []rikv1alpha1.Workload, s style) error {
	switch s.output {
	case "json", "yaml":
		return t.printObjects(found, s)
	case "name":
		for i := range found {
			_, _ = fmt.Fprintf(t.streams.Out, "workload.rik.dev/%s\n", found[i].Name)
		}
		return nil
	}
	if len(found) == 0 && !s.single {
		_, _ = fmt.Fprintf(t.streams.ErrOut, "No %s found.\n", plural(kind))
		return nil
	}
	list := &rikv1alpha1.InstanceList{}
	if err := c.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
		return err
	}
	return tabulate(t, found, list.Items, s)
}

func (t *tool) printObjects(found []rikv1alpha1.Workload, s style) error {
	for i := range found {
		found[i].SetGroupVersionKind(rikv1alpha1.SchemeGroupVersion.WithKind("Workload"))
		found[i].ManagedFields = nil
	}
	var object runtime.Object = &metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: rawItems(found)}
	if s.single && len(found) == 1 {
		object = &found[0]
	}
	var printer printers.ResourcePrinter = &printers.JSONPrinter{}
	if s.output == "yaml" {
		printer = &printers.YAMLPrinter{}
	}
	return printer.PrintObj(object, t.streams.Out)
}

func rawItems(found []rikv1alpha1.Workload) []runtime.RawExtension {
	items := make([]runtime.RawExtension, len(found))
	for i := range found {
		items[i].Object = &found[i]
	}
	return items
}

// tabulate prints one line for each workload with the columns of the published design. The wide
// output has more columns.
func tabulate(t *tool, found []rikv1alpha1.Workload, all []rikv1alpha1.Instance, s style) error {
	table := printers.GetNewTabWriter(t.streams.Out)
	header := []string{"NAME", "STATUS", "AGE"}
	if s.everywhere {
		header = append([]string{"NAMESPACE"}, header...)
	}
	if s.output == "wide" {
		header = append(header, "NODES", "SOURCE")
	}
	if !s.headless {
		_, _ = fmt.Fprintln(table, strings.Join(header, "\t"))
	}
	for i := range found {
		w := &found[i]
		mine := instancesAmong(all, w)
		cells := []string{w.Name, wholeStatus(w, mine), duration.HumanDuration(time.Since(w.CreationTimestamp.Time))}
		if s.everywhere {
			cells = append([]string{w.Namespace}, cells...)
		}
		if s.output == "wide" {
			cells = append(cells, orNone(strings.Join(nodesOf(mine), ",")), runs(&w.Spec.InstanceTemplate))
		}
		_, _ = fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	return table.Flush()
}

func orNone(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}

func instancesAmong(all []rikv1alpha1.Instance, w *rikv1alpha1.Workload) []rikv1alpha1.Instance {
	var mine []rikv1alpha1.Instance
	for i := range all {
		if all[i].Namespace == w.Namespace && all[i].Spec.Workload == w.Name {
			mine = append(mine, all[i])
		}
	}
	return mine
}

func nodesOf(instances []rikv1alpha1.Instance) []string {
	var nodes []string
	for i := range instances {
		if n := instances[i].Spec.NodeName; n != "" {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// wholeStatus returns the status of a workload: the status of its instances if they agree, or
// the number of instances with each status.
func wholeStatus(w *rikv1alpha1.Workload, instances []rikv1alpha1.Instance) string {
	if w.DeletionTimestamp != nil {
		return string(rikv1alpha1.InstanceDestroying)
	}
	counts, order := map[string]int{}, []string(nil)
	for i := range instances {
		word := statusWord(&instances[i])
		if counts[word]++; counts[word] == 1 {
			order = append(order, word)
		}
	}
	switch {
	case len(order) == 1:
		return order[0]
	case len(order) > 1:
		slices.Sort(order)
		parts := make([]string, 0, len(order))
		for _, word := range order {
			parts = append(parts, fmt.Sprintf("%d %s", counts[word], word))
		}
		return strings.Join(parts, ", ")
	case w.Spec.Deploy == rikv1alpha1.DeployAutomatic && (w.Spec.Replicas == nil || *w.Spec.Replicas > 0):
		return string(rikv1alpha1.InstancePending)
	default:
		return "Stopped"
	}
}

// statusWord returns the most informative status of an instance, the same as the server's table.
func statusWord(i *rikv1alpha1.Instance) string {
	s := &i.Status
	switch phase := phaseOf(i); {
	case phase == rikv1alpha1.InstanceUnknown:
		return string(phase)
	case i.DeletionTimestamp != nil:
		return string(rikv1alpha1.InstanceDestroying)
	case phase == rikv1alpha1.InstanceFailed && s.Reason != "":
		return s.Reason
	case phase.Ended():
		return string(phase)
	case phase == rikv1alpha1.InstanceRunning && s.Suspended:
		return rikv1alpha1.ReasonSuspended
	case phase == rikv1alpha1.InstanceCreating && s.Reason != "":
		return s.Reason
	default:
		for c := range s.Containers {
			if s.Containers[c].State == rikv1alpha1.ContainerWaiting && s.Containers[c].Reason != "" {
				return s.Containers[c].Reason
			}
		}
		return string(phase)
	}
}

func (t *tool) deployCommand() *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "deploy -f FILE",
		Short: "Deploy apps from deployment files",
		Long: `Deploy what files describe: deployment files (name, repo, version, action: deploy,
metadata), or workloads in any other form. A deployment file may also have
command, args, env, user, ports and resources; without a command the program of
the app's name at the top of the repository is run. Deploying again changes what
is there, as "rikctl apply -f" does.`,
		Example: indent(`
rikctl deploy -f nginx.yaml
rikctl get apps
rikctl delete app nginx`),
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return usagef(cmd, "-f FILE is required")
			}
			return t.runDeploy(cmd, files)
		},
	}
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file or directory; - for the standard input")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json")
	return cmd
}

// runDeploy reads all documents before it deploys the first one.
func (t *tool) runDeploy(cmd *cobra.Command, files []string) error {
	namespace, err := t.namespace()
	if err != nil {
		return err
	}
	documents, err := readDocuments(files, t.streams.In)
	if err != nil {
		return usageError{cmd.CommandPath(), err}
	}
	var workloads []*rikv1alpha1.Workload
	var problems []error
	for _, d := range documents {
		w, err := decodeWorkload(d, namespace)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		workloads = append(workloads, w)
	}
	if err := errors.Join(problems...); err != nil {
		return usageError{cmd.CommandPath(), err}
	}
	c, err := t.client()
	if err != nil {
		return err
	}
	for _, w := range workloads {
		if err := t.deploy(cmd.Context(), c, w); err != nil {
			return fmt.Errorf("deploying %s: %w", w.Name, err)
		}
	}
	return nil
}

func (t *tool) deploy(ctx context.Context, c client.Client, w *rikv1alpha1.Workload) error {
	before := &rikv1alpha1.Workload{}
	err := c.Get(ctx, client.ObjectKeyFromObject(w), before)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	word := "updated"
	if err != nil {
		word = "deployed"
	}
	manifest, err := manifestOf(w)
	if err != nil {
		return err
	}
	applied := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(manifest, &applied.Object); err != nil {
		return err
	}
	if err := adoptTyped(ctx, c, client.ObjectKeyFromObject(w), before); err != nil {
		return err
	}
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), fieldOwner); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(t.streams.Out, "%s %s\n", w.Name, word)
	return nil
}

// deleteOfKind implements "delete app NAME" and, for the published design, "delete NAME".
func (t *tool) deleteOfKind(cmd *cobra.Command, find func(context.Context, client.Client, string) ([]rikv1alpha1.Workload, error)) error {
	namespace, err := t.namespace()
	if err != nil {
		return err
	}
	c, err := t.client()
	if err != nil {
		return err
	}
	waits, _ := cmd.Flags().GetBool("wait")
	timeout, _ := cmd.Flags().GetDuration("timeout")
	found, problem := find(cmd.Context(), c, namespace)
	problems := []error{problem}
	for i := range found {
		problems = append(problems, t.destroy(cmd.Context(), c, &found[i], waits, timeout))
	}
	return errors.Join(problems...)
}

// destroy deletes a workload. It then reports the nodes that have confirmed the deletion.
func (t *tool) destroy(ctx context.Context, c client.Client, w *rikv1alpha1.Workload, waits bool, timeout time.Duration) error {
	instances, err := instancesOf(ctx, c, w)
	if err != nil {
		return err
	}
	uid := w.UID
	if err := c.Delete(ctx, w, client.Preconditions{UID: &uid}); err != nil {
		return fmt.Errorf("deleting %s: %w", w.Name, err)
	}
	if !waits {
		_, _ = fmt.Fprintf(t.streams.Out, "%s is being deleted\n", w.Name)
		return nil
	}
	if err := awaitEnd(ctx, c, w, timeout); err != nil {
		return err
	}
	nodes := nodesOf(instances)
	for _, n := range nodes {
		_, _ = fmt.Fprintf(t.streams.Out, "%s deleted on %s\n", w.Name, n)
	}
	if len(nodes) == 0 {
		_, _ = fmt.Fprintf(t.streams.Out, "%s deleted\n", w.Name)
	}
	return nil
}

// awaitEnd waits until the workload and all its instances are gone.
func awaitEnd(ctx context.Context, c client.Client, w *rikv1alpha1.Workload, timeout time.Duration) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, timeoutError{w.Name + " to be gone; it goes when its nodes have confirmed that nothing of it is left"})
		defer cancel()
	}
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now := &rikv1alpha1.Workload{}
		err := c.Get(ctx, client.ObjectKeyFromObject(w), now)
		if err == nil && now.UID == w.UID {
			return false, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return false, err
		}
		left, err := instancesOf(ctx, c, w)
		return !slices.ContainsFunc(left, func(i rikv1alpha1.Instance) bool { return ownedBy(&i, w) }), err
	})
	var late timeoutError
	if err != nil && errors.As(context.Cause(ctx), &late) {
		return late
	}
	return err
}

func ownedBy(i *rikv1alpha1.Instance, w *rikv1alpha1.Workload) bool {
	return slices.ContainsFunc(i.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == w.UID })
}

// deletable returns the function that finds the workload of "delete NAME": a Function, or an
// App if no Function has that name. Other workloads need their type in front of the name.
func deletable(name string) func(context.Context, client.Client, string) ([]rikv1alpha1.Workload, error) {
	return func(ctx context.Context, c client.Client, namespace string) ([]rikv1alpha1.Workload, error) {
		var missing error
		for _, kind := range []rikv1alpha1.WorkloadKind{rikv1alpha1.KindFunction, rikv1alpha1.KindApp} {
			found, err := workloadsOf(ctx, c, kind, []string{name}, client.InNamespace(namespace))
			if err == nil {
				return found, nil
			}
			if !apierrors.IsNotFound(err) {
				return nil, err
			}
			missing = err
		}
		return nil, missing
	}
}
