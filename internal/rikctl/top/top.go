package top

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/printers"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rpc/usage"
)

// topFlags are the flags of both forms of top.
type topFlags struct {
	sortBy     string
	allSpaces  bool
	noHeadings bool
	vm         bool
}

// NewCommand returns the command "rikctl top".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:   "top",
		Short: "Show the resource usage of nodes and instances",
	},
		t.topOf("nodes", []string{"node", "no"}, target.CompleteNodes(t.Factory), t.runTopNodes),
		t.topOf("instances", []string{"instance", "inst", "ins"}, target.CompleteInstance(t.Factory), t.runTopInstances))
}

func (t *tool) topOf(use string, aliases []string, complete cobra.CompletionFunc,
	run func(context.Context, []string, topFlags) error) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:               use + " [NAME...]",
		Aliases:           aliases,
		Short:             "Show the resource usage of " + use,
		ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, given []string) error {
			if f.sortBy != "" && f.sortBy != "cpu" && f.sortBy != "memory" {
				return cmdline.Errorf(cmd, "--sort-by %q is not supported; use cpu or memory", f.sortBy)
			}
			return run(cmd.Context(), given, f)
		},
	}
	cmd.Flags().StringVar(&f.sortBy, "sort-by", "", "cpu or memory; by name by default")
	cmd.Flags().BoolVar(&f.noHeadings, "no-headers", false, "do not print the headings")
	if use == "instances" {
		cmd.Flags().BoolVarP(&f.allSpaces, "all-namespaces", "A", false, "show the instances of all namespaces")
		cmd.Flags().BoolVar(&f.vm, "vm", false, "show the CPU, disk and network usage of running microVMs since their start")
	}
	return cmd
}

// usages reads the metrics of one kind and returns those of the named objects, sorted.
func (t *tool) usages(ctx context.Context, kind, namespace string, names []string, f topFlags) ([]usage.Item, error) {
	query := map[string]string{}
	if namespace != "" {
		query["namespace"] = namespace
	}
	data, err := t.Raw(ctx, []string{"rik", "metrics", kind}, query)
	if apierrors.IsNotFound(err) {
		return nil, clierror.WithNext(fmt.Errorf("the server has no metrics of %s: %w", kind, err),
			"the controller of a rik cluster provides them; check that it runs and is not an older version")
	}
	if err != nil {
		return nil, fmt.Errorf("asking for the metrics of %s: %w", kind, err)
	}
	var answer usage.List
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("reading the metrics of %s: %w", kind, err)
	}
	return choose(answer.Items, kind, names, f.sortBy)
}

// choose returns the items with the given names, sorted.
func choose(items []usage.Item, kind string, names []string, sortBy string) ([]usage.Item, error) {
	for _, n := range names {
		if !slices.ContainsFunc(items, func(u usage.Item) bool { return u.Name == n }) {
			return nil, fmt.Errorf("metrics of %s %q not found: it does not exist, or its node has sent none yet", strings.TrimSuffix(kind, "s"), n)
		}
	}
	if len(names) > 0 {
		items = slices.DeleteFunc(items, func(u usage.Item) bool { return !slices.Contains(names, u.Name) })
	}
	slices.SortFunc(items, func(a, b usage.Item) int {
		switch {
		case sortBy == "cpu" && a.CPUMillis != b.CPUMillis:
			return int(b.CPUMillis - a.CPUMillis)
		case sortBy == "memory" && a.MemoryBytes > b.MemoryBytes:
			return -1
		case sortBy == "memory" && a.MemoryBytes < b.MemoryBytes:
			return 1
		}
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return items, nil
}

func (t *tool) runTopNodes(ctx context.Context, names []string, f topFlags) error {
	items, err := t.usages(ctx, "nodes", "", target.NodeNames(names), f)
	if err != nil {
		return err
	}
	c, err := t.Client()
	if err != nil {
		return err
	}
	nodes := &rikv1alpha1.NodeList{}
	if err := c.List(ctx, nodes); err != nil {
		return err
	}
	return printTopNodes(t.Streams.Out, items, nodes.Items, f.noHeadings)
}

func printTopNodes(out io.Writer, items []usage.Item, nodes []rikv1alpha1.Node, noHeadings bool) error {
	table := printers.GetNewTabWriter(out)
	if !noHeadings {
		_, _ = fmt.Fprintln(table, "NAME\tCPU\tCPU%\tMEMORY\tMEMORY%")
	}
	for _, u := range items {
		capacity := rikv1alpha1.ResourceList{}
		for i := range nodes {
			if nodes[i].Name == u.Name {
				capacity = nodes[i].Status.Capacity
			}
		}
		_, _ = fmt.Fprintf(table, "%s\t%dm\t%s\t%s\t%s\n", u.Name, u.CPUMillis,
			percent(u.CPUMillis, capacity.MilliCPU()), printer.Mebibytes(u.MemoryBytes),
			percent(u.MemoryBytes, capacity.Bytes(rikv1alpha1.ResourceMemory)))
	}
	return table.Flush()
}

func (t *tool) runTopInstances(ctx context.Context, names []string, f topFlags) error {
	namespace := ""
	if !f.allSpaces {
		var err error
		if namespace, err = t.Namespace(); err != nil {
			return err
		}
	}
	items, err := t.usages(ctx, "instances", namespace, names, f)
	if err != nil {
		return err
	}
	if f.vm {
		return printTopVMs(t.Streams.Out, items, f)
	}
	return printTopInstances(t.Streams.Out, items, f)
}

// printTopVMs prints the counters of microVMs. EXITS are exits from the guest to its VMM. Only
// some VMMs count them.
func printTopVMs(out io.Writer, items []usage.Item, f topFlags) error {
	table := printers.GetNewTabWriter(out)
	if !f.noHeadings {
		_, _ = fmt.Fprintln(table, f.space("NAMESPACE")+"NAME\tVCPU-TIME\tEXITS\tDISK-READ\tDISK-WRITTEN\tNET-IN\tNET-OUT\tNODE")
	}
	for _, u := range items {
		if v := u.VM; v != nil {
			_, _ = fmt.Fprintf(table, "%s%s\t%.1fs\t%d\t%s\t%s\t%s\t%s\t%s\n", f.space(u.Namespace), u.Name,
				time.Duration(v.VCPUNanos).Seconds(), v.Exits, kibibytes(v.DiskReadBytes), kibibytes(v.DiskWriteBytes),
				kibibytes(v.NetworkReceiveBytes), kibibytes(v.NetworkTransmitBytes), u.Node)
		}
	}
	return table.Flush()
}

// space returns the namespace column, or "" if the output has none.
func (f topFlags) space(s string) string {
	if !f.allSpaces {
		return ""
	}
	return s + "\t"
}

func printTopInstances(out io.Writer, items []usage.Item, f topFlags) error {
	table := printers.GetNewTabWriter(out)
	if !f.noHeadings {
		_, _ = fmt.Fprintln(table, f.space("NAMESPACE")+"NAME\tCPU\tMEMORY\tNODE")
	}
	for _, u := range items {
		_, _ = fmt.Fprintf(table, "%s%s\t%dm\t%s\t%s\n", f.space(u.Namespace), u.Name, u.CPUMillis, printer.Mebibytes(u.MemoryBytes), u.Node)
	}
	return table.Flush()
}

func percent(part, whole int64) string {
	if whole <= 0 {
		return "?"
	}
	return fmt.Sprintf("%d%%", part*100/whole)
}

func kibibytes(n uint64) string { return fmt.Sprintf("%dKi", n>>10) }
