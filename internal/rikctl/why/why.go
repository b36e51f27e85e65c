package why

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/kubectl/pkg/util/completion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/trouble"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// NewCommand returns the command "rikctl why".
func NewCommand(factory *access.Factory, explainObject func(cmd *cobra.Command, given []string, output string) error) *cobra.Command {
	t := &tool{factory}
	var output string
	cmd := &cobra.Command{
		Use:   "why INSTANCE | TYPE/NAME | TYPE NAME",
		Short: "Explain the placement of an instance, or the split of an object over clusters",
		Long: `Explain why an instance is on its node, or why no node accepts it. For an instance that
does not run as it should, such as with CrashLoopBackOff or ImagePullFailed, also show
the cause and the next step.

On a kcp, explain the split of an object over clusters. For each cluster, show whether it
may have replicas (STANDING), its WEIGHT in the split, and the part that it HAS. Also show
the part that it GETS with the next step, its final SHARE, and how many replicas are READY.
The result is computed from the present state of the kcp. Nothing changes.`,
		Example: cmdline.Example(`
rikctl why web-x7k2p
rikctl why deployment/web
rikctl why deployment web -o json`),
		Args:              cmdline.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: t.completeWhy,
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckOutput(cmd, output); err != nil {
				return err
			}
			tg, err := target.Parse(strings.Join(given, "/"))
			if err != nil || tg.Workload {
				return explainObject(cmd, given, output)
			}
			if output != "" {
				return cmdline.Errorf(cmd, "-o is not available for instances")
			}
			return t.runWhy(cmd.Context(), tg.Name)
		},
	}
	printer.AddOutput(cmd, &output)
	return cmd
}

// completeWhy completes instances, and the names of a type after TYPE/ or TYPE.
func (t *tool) completeWhy(cmd *cobra.Command, given []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(given) == 1 && !strings.Contains(given[0], "/") {
		return completion.CompGetResource(t.Kube, given[0], typed), cobra.ShellCompDirectiveNoFileComp
	}
	return target.CompleteInstance(t.Factory)(cmd, given, typed)
}

func (t *tool) runWhy(ctx context.Context, instance string) error {
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return err
	}
	i := &rikv1alpha1.Instance{}
	err = c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: instance}, i)
	if meta.IsNoMatchError(err) {
		return clierror.WithNext(fmt.Errorf("the server has no instances: %w", err),
			"on a kcp, name an object that it splits, such as \"rikctl why deployment/"+instance+"\"")
	}
	if err != nil {
		return err
	}
	if i.Spec.NodeName != "" {
		trouble.Print(t.Streams.Out, i)
	}
	explanation := &schedulerv1.Explanation{}
	data, err := t.Raw(ctx, []string{"rik", "why", namespace, instance}, nil)
	switch {
	case apierrors.IsNotFound(err):
		return clierror.WithNext(fmt.Errorf("the server has no explanation of the placement of instance %s: %w", instance, err),
			"\"rikctl describe instance "+instance+"\" shows the recorded reason")
	case apierrors.HasStatusCause(err, schedulerv1.CauseUnavailable):
		return clierror.WithNext(fmt.Errorf("asking why instance %s is %s: %w", instance, target.PhaseOf(i), err),
			"start the scheduler, or check its log and --scheduler-url of the controller; \"rikctl describe instance "+instance+"\" shows the recorded reason")
	case err != nil:
		return fmt.Errorf("asking for the explanation of instance %s: %w", instance, err)
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, explanation); err != nil {
		return fmt.Errorf("reading the explanation of instance %s: %w", instance, err)
	}
	return printWhy(t.Streams.Out, i, explanation)
}

func printWhy(out io.Writer, i *rikv1alpha1.Instance, e *schedulerv1.Explanation) error {
	switch {
	case i.Spec.NodeName != "":
		_, _ = fmt.Fprintf(out, "Instance %s is on node %s%s; it is %s.\n", i.Name, i.Spec.NodeName, since(i), target.PhaseOf(i))
	case e.GetNodeName() != "":
		_, _ = fmt.Fprintf(out, "Instance %s is not placed yet; it would go to node %s.\n", i.Name, e.GetNodeName())
	default:
		_, _ = fmt.Fprintf(out, "Instance %s is not placed: no node accepts it.\n", i.Name)
	}
	if e.GetSummary() != "" {
		_, _ = fmt.Fprintln(out, printers.EscapeTerminal(e.GetSummary()))
	}
	if len(e.GetNodes()) == 0 {
		return nil
	}
	if i.Spec.NodeName != "" {
		_, _ = fmt.Fprintln(out, "\nIf the instance were placed now, the nodes would be rated like this:")
	} else {
		_, _ = fmt.Fprintln(out)
	}
	return printVerdicts(out, e.GetNodes())
}

// since returns the time since when an instance runs on its node, as far as it is known.
func since(i *rikv1alpha1.Instance) string {
	if i.Status.StartedAt == nil {
		return ""
	}
	return " since " + i.Status.StartedAt.UTC().Format(time.RFC3339)
}

// printVerdicts lists the nodes that fit by descending score, then the others.
func printVerdicts(out io.Writer, verdicts []*schedulerv1.NodeVerdict) error {
	sorted := slices.Clone(verdicts)
	slices.SortStableFunc(sorted, func(a, b *schedulerv1.NodeVerdict) int {
		if fits := a.GetRejectedBy() == ""; fits != (b.GetRejectedBy() == "") {
			if fits {
				return -1
			}
			return 1
		}
		if a.GetScore() != b.GetScore() {
			return int(b.GetScore() - a.GetScore())
		}
		return strings.Compare(a.GetName(), b.GetName())
	})
	table := printers.GetNewTabWriter(out)
	_, _ = fmt.Fprintln(table, "NODE\tFITS\tSCORE\tFILTER\tREASON")
	for _, v := range sorted {
		if v.GetRejectedBy() != "" {
			_, _ = fmt.Fprintf(table, "%s\tno\t-\t%s\t%s\n", v.GetName(), v.GetRejectedBy(), printers.EscapeTerminal(v.GetReason()))
			continue
		}
		_, _ = fmt.Fprintf(table, "%s\tyes\t%d\t-\t%s\n", v.GetName(), v.GetScore(), scores(v))
	}
	return table.Flush()
}

// scores lists the result of each scorer, sorted by name.
func scores(v *schedulerv1.NodeVerdict) string {
	var words []string
	for scorer, n := range v.GetScores() {
		words = append(words, fmt.Sprintf("%s=%d", scorer, n))
	}
	slices.Sort(words)
	if v.GetReason() != "" {
		words = append([]string{v.GetReason()}, words...)
	}
	return strings.Join(words, " ")
}
