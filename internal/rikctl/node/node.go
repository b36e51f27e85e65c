package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/drain"
	"rik.dev/rik/internal/rikctl/ownership"
	"rik.dev/rik/internal/rikctl/target"
)

// NewCordonCommand returns the command "rikctl taint".
func NewCordonCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return t.schedulableCommand("cordon", "Place no new instances on nodes", true)
}

// NewUncordonCommand returns the command "rikctl taint".
func NewUncordonCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return t.schedulableCommand("uncordon", "Place instances on nodes again", false)
}

func (t *tool) schedulableCommand(use, short string, unschedulable bool) *cobra.Command {
	return &cobra.Command{
		Use:               use + " NODE...",
		Short:             short,
		Args:              cmdline.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: target.CompleteNodes(t.Factory),
		RunE: func(cmd *cobra.Command, given []string) error {
			c, err := t.Client()
			if err != nil {
				return err
			}
			var problems []error
			for _, n := range target.NodeNames(given) {
				problems = append(problems, setUnschedulable(cmd.Context(), c, t.Streams.Out, n, unschedulable))
			}
			return errors.Join(problems...)
		},
	}
}

// setUnschedulable cordons or uncordons a node, and writes what it did.
func setUnschedulable(ctx context.Context, c client.Client, out io.Writer, node string, unschedulable bool) error {
	n := &rikv1alpha1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
		return err
	}
	word, value := "uncordoned", "null"
	if unschedulable {
		word, value = "cordoned", "true"
	}
	if n.Spec.Unschedulable == unschedulable {
		_, _ = fmt.Fprintf(out, "node/%s already %s\n", node, word)
		return nil
	}
	forget := "" // uncordoning also removes the baseline of a drain
	if !unschedulable {
		forget = `"metadata":{"annotations":{"` + drain.AnnotationBaseline + `":null}},`
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{`+forget+`"spec":{"unschedulable":`+value+`}}`))
	if err := c.Patch(ctx, n, patch, ownership.Node); err != nil {
		return fmt.Errorf("changing node %s: %w", node, err)
	}
	_, _ = fmt.Fprintf(out, "node/%s %s\n", node, word)
	return nil
}

// taintChange is one argument: it adds a taint, or removes the taints with a key and, if given,
// an effect.
type taintChange struct {
	taint  rikv1alpha1.Taint
	remove bool
}

// parseTaint parses KEY=VALUE:EFFECT, KEY:EFFECT, KEY:EFFECT- or KEY-.
func parseTaint(word string) (taintChange, error) {
	body, remove := strings.CutSuffix(word, "-")
	keyValue, effect, hasEffect := strings.Cut(body, ":")
	key, value, _ := strings.Cut(keyValue, "=")
	change := taintChange{rikv1alpha1.Taint{Key: key, Value: value, Effect: rikv1alpha1.TaintEffect(effect)}, remove}
	effects := []rikv1alpha1.TaintEffect{rikv1alpha1.TaintNoSchedule, rikv1alpha1.TaintPreferNoSchedule, rikv1alpha1.TaintNoExecute}
	switch {
	case key == "":
		return change, fmt.Errorf("taint %q has no key: write KEY=VALUE:EFFECT, or KEY- to remove", word)
	case !hasEffect && !remove:
		return change, fmt.Errorf("taint %q has no effect: write KEY=VALUE:EFFECT with the effect %s, %s or %s", word, effects[0], effects[1], effects[2])
	case hasEffect && !slices.Contains(effects, change.taint.Effect):
		return change, fmt.Errorf("taint %q: effect %q is none of %s, %s and %s", word, effect, effects[0], effects[1], effects[2])
	}
	return change, nil
}

// applyTaints applies the changes in order. It replaces a taint that has another value only with
// overwrite. Removing a taint that does not exist is an error, because that is probably a typing
// mistake.
func applyTaints(current []rikv1alpha1.Taint, changes []taintChange, overwrite bool) ([]rikv1alpha1.Taint, error) {
	taints := slices.Clone(current)
	for _, c := range changes {
		same := func(o rikv1alpha1.Taint) bool {
			return o.Key == c.taint.Key && (c.taint.Effect == "" || o.Effect == c.taint.Effect)
		}
		at := slices.IndexFunc(taints, same)
		switch {
		case c.remove && at < 0:
			return nil, fmt.Errorf("taint %q not found", strings.TrimSuffix(c.taint.Text(), ":"))
		case c.remove:
			taints = slices.DeleteFunc(taints, same)
		case at < 0:
			taints = append(taints, c.taint)
		case taints[at].Value != c.taint.Value && !overwrite:
			return nil, fmt.Errorf("the node already has taint %s with another value; --overwrite replaces it", taints[at].Text())
		default:
			taints[at] = c.taint
		}
	}
	return taints, nil
}

// NewTaintCommand returns the command "rikctl taint".
func NewTaintCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "taint node NODE KEY=VALUE:EFFECT...",
		Short: "Add taints to a node, or remove them",
		Example: cmdline.Example(`
rikctl taint node worker-1 gpu=yes:NoSchedule
rikctl taint node worker-1 gpu-`),
		Args: cmdline.Args(cobra.MinimumNArgs(2)),
		ValidArgsFunction: func(cmd *cobra.Command, given []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(given) == 0 {
				return []string{"node"}, cobra.ShellCompDirectiveNoFileComp
			}
			return target.CompleteNodes(t.Factory)(cmd, given, typed)
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			if slices.Contains([]string{"node", "nodes", "no"}, given[0]) {
				given = given[1:]
			}
			if len(given) < 2 {
				return cmdline.Errorf(cmd, "a node and at least one taint are required")
			}
			var changes []taintChange
			for _, word := range given[1:] {
				c, err := parseTaint(word)
				if err != nil {
					return cmdline.Wrap(cmd, err)
				}
				changes = append(changes, c)
			}
			return t.runTaint(cmd.Context(), target.NodeNames(given[:1])[0], changes, overwrite)
		},
	}
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "replace a taint of the same key and effect")
	return cmd
}

func (t *tool) runTaint(ctx context.Context, node string, changes []taintChange, overwrite bool) error {
	c, err := t.Client()
	if err != nil {
		return err
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n := &rikv1alpha1.Node{}
		if err := c.Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
			return err
		}
		taints, err := applyTaints(n.Spec.Taints, changes, overwrite)
		if err != nil {
			return fmt.Errorf("node %s: %w", node, err)
		}
		n.Spec.Taints = taints
		return c.Update(ctx, n, ownership.Node)
	})
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(t.Streams.Out, "node/%s tainted\n", node)
	return nil
}
