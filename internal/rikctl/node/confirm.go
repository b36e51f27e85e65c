package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/ownership"
	"rik.dev/rik/internal/rikctl/target"
)

// NewCommand returns the command "rikctl node".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use: "node", Short: "Confirm what a node waits for",
	}, t.confirmCommand())
}

func (t *tool) confirmCommand() *cobra.Command {
	var all, dryRun bool
	cmd := &cobra.Command{
		Use:   "confirm NODE...",
		Short: "Confirm the action for which nodes wait",
		Long: `Confirm an action that a node has not performed yet, because a lost or wrong
datastore may have caused it. There are three such actions: to stop instances that the
cluster has no record of, to join another cluster, and to accept a controller with a
lower term than before. "get nodes" shows ConfirmationNeeded, and "describe node" shows
the action.

Find the cause first. If the server was started with an empty or a different
datastore, start it with the right one. Then there is nothing to confirm.`,
		Example: cmdline.Example(`
rikctl node confirm worker-1
rikctl node confirm --all --dry-run`),
		Args:              cmdline.Args(cobra.ArbitraryArgs),
		ValidArgsFunction: target.CompleteNodes(t.Factory),
		RunE: func(cmd *cobra.Command, given []string) error {
			if all == (len(given) > 0) {
				return cmdline.Errorf(cmd, "name the nodes, or use --all")
			}
			return t.runConfirm(cmd.Context(), target.NodeNames(given), all, dryRun)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "confirm every node that waits, except for a term more than 1000 above the controller's")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be confirmed, and confirm nothing")
	return cmd
}

func (t *tool) runConfirm(ctx context.Context, names []string, all, dryRun bool) error {
	c, err := t.Client()
	if err != nil {
		return err
	}
	nodes, err := nodesToConfirm(ctx, c, names, all)
	if err != nil {
		return err
	}
	var problems []error
	waiting := 0
	for i := range nodes {
		n := &nodes[i]
		waits := n.Status.Confirmation
		switch {
		case waits == nil && all:
			continue
		case waits == nil:
			_, _ = fmt.Fprintf(t.Streams.Out, "node/%s does not wait for a confirmation\n", n.Name)
			continue
		case all && far(waits):
			problems = append(problems, fmt.Errorf("node %s has accepted term %d, far above term %d of the controller; if that is right, run: rikctl node confirm %s", n.Name, waits.Term, waits.ControllerTerm, n.Name))
			continue
		}
		waiting++
		if dryRun {
			_, _ = fmt.Fprintf(t.Streams.Out, "node/%s would be confirmed: %s\n", n.Name, meaning(waits))
			continue
		}
		if err := confirm(ctx, c, n); err != nil {
			problems = append(problems, fmt.Errorf("confirming node %s: %w", n.Name, err))
			continue
		}
		_, _ = fmt.Fprintf(t.Streams.Out, "node/%s confirmed: %s\n", n.Name, meaning(waits))
	}
	if all && waiting == 0 && len(problems) == 0 {
		_, _ = fmt.Fprintln(t.Streams.Out, "No node waits for a confirmation.")
	}
	return errors.Join(problems...)
}

func nodesToConfirm(ctx context.Context, c client.Client, names []string, all bool) ([]rikv1alpha1.Node, error) {
	if all {
		list := &rikv1alpha1.NodeList{}
		err := c.List(ctx, list)
		return list.Items, err
	}
	nodes := make([]rikv1alpha1.Node, len(names))
	for i, name := range names {
		if err := c.Get(ctx, client.ObjectKey{Name: name}, &nodes[i]); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

// confirm confirms exactly the request that the user saw, so that it does not confirm a request
// that has changed since.
func confirm(ctx context.Context, c client.Client, n *rikv1alpha1.Node) error {
	annotations := map[string]string{rikv1alpha1.AnnotationConfirmed: n.Status.Confirmation.ID}
	if uid := n.Status.Confirmation.Certificate; uid != "" {
		annotations[rikv1alpha1.AnnotationConfirmedCertificate] = uid
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations, "uid": n.UID}})
	if err != nil {
		return err
	}
	return c.Patch(ctx, n, client.RawPatch(types.MergePatchType, data), ownership.Node)
}

func far(c *rikv1alpha1.NodeConfirmation) bool {
	return c.Reason == rikv1alpha1.ConfirmLowerTerm && c.Term-c.ControllerTerm > rikv1alpha1.FarTerm
}

// meaning describes the effect of the confirmation.
func meaning(c *rikv1alpha1.NodeConfirmation) string {
	text := "the node rejoins the cluster"
	switch c.Reason {
	case rikv1alpha1.ConfirmUnknownInstances:
		text = fmt.Sprintf("the node stops %d instances that the cluster has no record of", c.Instances)
	case rikv1alpha1.ConfirmOtherCluster:
		text = fmt.Sprintf("the node leaves cluster %s for this one and stops %d instances", c.Cluster, c.Instances)
	case rikv1alpha1.ConfirmLowerTerm:
		text = fmt.Sprintf("the controller changes from term %d to one above %d, which the node has accepted", c.ControllerTerm, c.Term)
	}
	if c.Certificate != "" {
		text += "; the cluster accepts the node's certificate, which it has no record of"
	}
	return text
}
