package rikctl

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
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

func (t *tool) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "why INSTANCE",
		Short:             "Say why an instance is where it is, or why no node takes it",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeInstances,
		RunE: func(cmd *cobra.Command, given []string) error {
			tg, err := parseTarget(given[0])
			if err != nil || tg.workload {
				return usagef(cmd, "%q is not an instance; \"rikctl get instances\" lists them", given[0])
			}
			return t.runWhy(cmd.Context(), tg.name)
		},
	}
}

func (t *tool) runWhy(ctx context.Context, instance string) error {
	namespace, err := t.namespace()
	if err != nil {
		return err
	}
	c, err := t.client()
	if err != nil {
		return err
	}
	i := &rikv1alpha1.Instance{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: instance}, i); err != nil {
		return err
	}
	explanation := &schedulerv1.Explanation{}
	data, err := t.raw(ctx, []string{"rik", "why", namespace, instance}, nil)
	switch {
	case apierrors.IsNotFound(err):
		return advised{fmt.Errorf("the server explains no placement of instance %s: %w", instance, err),
			"\"rikctl describe instance " + instance + "\" shows the reason that was recorded"}
	case err != nil:
		return fmt.Errorf("asking for the explanation of instance %s: %w", instance, err)
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, explanation); err != nil {
		return fmt.Errorf("reading the explanation of instance %s: %w", instance, err)
	}
	return printWhy(t.streams.Out, i, explanation)
}

// raw asks for a path that is no object.
func (t *tool) raw(ctx context.Context, path []string, query map[string]string) ([]byte, error) {
	c, _, err := t.restClient()
	if err != nil {
		return nil, err
	}
	request := c.Get().AbsPath(path...)
	for key, value := range query {
		request = request.Param(key, value)
	}
	return request.DoRaw(ctx)
}

func printWhy(out io.Writer, i *rikv1alpha1.Instance, e *schedulerv1.Explanation) error {
	switch {
	case i.Spec.NodeName != "":
		_, _ = fmt.Fprintf(out, "Instance %s is on node %s%s; it is %s.\n", i.Name, i.Spec.NodeName, since(i), phaseOf(i))
	case e.GetNodeName() != "":
		_, _ = fmt.Fprintf(out, "Instance %s is not placed yet; it would go to node %s.\n", i.Name, e.GetNodeName())
	default:
		_, _ = fmt.Fprintf(out, "Instance %s is not placed: no node takes it.\n", i.Name)
	}
	if e.GetSummary() != "" {
		_, _ = fmt.Fprintln(out, printers.EscapeTerminal(e.GetSummary()))
	}
	if len(e.GetNodes()) == 0 {
		return nil
	}
	if i.Spec.NodeName != "" {
		_, _ = fmt.Fprintln(out, "\nPlaced again now, the nodes would be judged like this:")
	} else {
		_, _ = fmt.Fprintln(out)
	}
	return printVerdicts(out, e.GetNodes())
}

// since says from when on an instance is known to run on its node.
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

// scores lists what each scorer gave, by name.
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
