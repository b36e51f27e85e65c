package get

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/kubectl/pkg/cmd/get"
	"k8s.io/kubectl/pkg/util/completion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/workloadkind"
)

// NewCommand returns the command "rikctl get".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	cmd := get.NewCmdGet(cmdline.Program, t.Kube, t.Streams)
	cmd.ValidArgsFunction = completion.ResourceTypeAndNameCompletionFunc(t.Kube)
	kubectls := cmd.Run
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if kind, names, ok := workloadkind.Parse(given); ok {
			return t.getOfKind(cmd, kind, names)
		}
		kubectls(cmd, given)
		return nil
	}
	return cmd
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
			return cmdline.Errorf(cmd, "--%s is not available for %s; use \"%s get workloads\"", other, workloadkind.Plural(kind), cmdline.Program)
		}
	}
	if !slices.Contains([]string{"", "wide", "name", "json", "yaml"}, output) {
		return cmdline.Errorf(cmd, "-o %s is not available for %s; use wide, name, json or yaml, or \"%s get workloads\"", output, workloadkind.Plural(kind), cmdline.Program)
	}
	watching, _ := flags.GetBool("watch")
	if watching && output != "" && output != "wide" {
		return cmdline.Errorf(cmd, "-o %s is not available with --watch for %s; use \"%s get workloads\"", output, workloadkind.Plural(kind), cmdline.Program)
	}
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return err
	}
	if everywhere {
		namespace = ""
	}
	parsed, err := metav1.ParseToLabelSelector(selector)
	if err != nil {
		return cmdline.Wrap(cmd, err)
	}
	labels, err := metav1.LabelSelectorAsSelector(parsed)
	if err != nil {
		return cmdline.Wrap(cmd, err)
	}
	options := []client.ListOption{client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: labels}}
	if watching {
		return t.followOfKind(cmd.Context(), c, kind, names, style{output, namespace, everywhere, headless, false}, options...)
	}
	found, missing := workloadkind.Find(cmd.Context(), c, kind, names, options...)
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
			_, _ = fmt.Fprintf(t.Streams.Out, "workload.rik.dev/%s\n", found[i].Name)
		}
		return nil
	}
	if len(found) == 0 && !s.single {
		_, _ = fmt.Fprintf(t.Streams.ErrOut, "No %s found.\n", workloadkind.Plural(kind))
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
	return printer.PrintObj(object, t.Streams.Out)
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
	table := printers.GetNewTabWriter(t.Streams.Out)
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
			cells = append(cells, printer.OrNone(strings.Join(target.NodesOf(mine), ",")), printer.Runs(&w.Spec.InstanceTemplate))
		}
		_, _ = fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	return table.Flush()
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
	switch phase := target.PhaseOf(i); {
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
