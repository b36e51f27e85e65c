// Package restore has the command "rikctl restore": what remains to be done after a cluster was
// restored from a backup.
package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controllerterm"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }

// leasePath is the path of the active controller's Lease, which says that a cluster was restored.
const leasePath = "/apis/coordination.k8s.io/v1/namespaces/" + controllerterm.Namespace + "/leases/" + controllerterm.LeaseName

// NewCommand returns the command "rikctl restore".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:   "restore",
		Short: "Show and finish what remains after a restore from a backup",
		Long: `Show and finish what remains after a restore from a backup. "rik server --restore"
restores. Nodes may then run instances that began after the backup, so that the
cluster has no record of them. Nodes keep them, and get no new instances, until
"rikctl node confirm NODE" lets the node stop them.`,
	}, t.statusCommand(), t.finishCommand())
}

func (t *tool) statusCommand() *cobra.Command {
	var bare bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the nodes that wait, and their instances that the backup does not know",
		Args:  cmdline.Args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return t.status(cmd.Context(), !bare) },
	}
	cmd.Flags().BoolVar(&bare, "no-headers", false, "do not print the headings")
	return cmd
}

// from returns the time and the ID of the backup. Both are empty if the cluster was not restored.
func (t *tool) from(ctx context.Context) (created, id string, err error) {
	c, _, err := t.RESTClient()
	if err != nil {
		return "", "", err
	}
	data, err := c.Get().AbsPath(leasePath).SetHeader("Accept", "application/json").DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("reading whether the cluster was restored: %w", err)
	}
	var lease coordinationv1.Lease
	if err := json.Unmarshal(data, &lease); err != nil {
		return "", "", fmt.Errorf("reading whether the cluster was restored: %w", err)
	}
	created, id, _ = strings.Cut(lease.Annotations[controllerterm.AnnotationRestored], " ")
	return created, id, nil
}

// waiting returns the nodes that wait for a confirmation.
func (t *tool) waiting(ctx context.Context) ([]rikv1alpha1.Node, error) {
	c, err := t.Client()
	if err != nil {
		return nil, err
	}
	var list rikv1alpha1.NodeList
	if err := c.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing the nodes: %w", err)
	}
	var out []rikv1alpha1.Node
	for i := range list.Items {
		if list.Items[i].Status.Confirmation != nil {
			out = append(out, list.Items[i])
		}
	}
	return out, nil
}

func (t *tool) status(ctx context.Context, headings bool) error {
	created, id, err := t.from(ctx)
	if err != nil {
		return err
	}
	if id == "" {
		_, err := fmt.Fprintln(t.Streams.Out, "The cluster was not restored from a backup, or that is finished.")
		return err
	}
	_, _ = fmt.Fprintf(t.Streams.Out, "The cluster was restored from the backup %s of %s.\n", printers.EscapeTerminal(id), printers.EscapeTerminal(created))
	nodes, err := t.waiting(ctx)
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		_, err := fmt.Fprintln(t.Streams.Out, "No node waits for a confirmation. Once all nodes have connected: rikctl restore finish")
		return err
	}
	w := printers.GetNewTabWriter(t.Streams.Out)
	if headings {
		_, _ = fmt.Fprintln(w, "NODE\tREASON\tINSTANCES\tNAME")
	}
	for i := range nodes {
		c := nodes[i].Status.Confirmation
		names := c.Unknown
		if more := int(c.Instances) - len(names); len(names) > 0 && more > 0 {
			names = append(names, fmt.Sprintf("and %d more", more))
		}
		if len(names) == 0 {
			names = []string{"<none>"}
		}
		for _, name := range names {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", nodes[i].Name, printers.EscapeTerminal(c.Reason), c.Instances, printers.EscapeTerminal(name))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(t.Streams.Out, "These instances continue to run. To stop those of a node, and to let it get instances again: rikctl node confirm NODE")
	return err
}

func (t *tool) finishCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "finish",
		Short: "Treat the cluster like one that was not restored",
		Long: `Treat the cluster like one that was not restored. When the controller starts next, nodes
stop again a few instances that the cluster has no record of: at most a quarter of those of
a node. Use it when all nodes have connected and none waits.`,
		Args: cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return t.finish(cmd.Context()) },
	}
}

func (t *tool) finish(ctx context.Context) error {
	_, id, err := t.from(ctx)
	if err != nil {
		return err
	}
	if id == "" {
		_, err := fmt.Fprintln(t.Streams.Out, "The cluster was not restored from a backup, or that is finished.")
		return err
	}
	nodes, err := t.waiting(ctx)
	if err != nil {
		return err
	}
	if len(nodes) > 0 {
		return fmt.Errorf("%d nodes wait for a confirmation, such as %s: see rikctl restore status", len(nodes), nodes[0].Name)
	}
	c, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{controllerterm.AnnotationRestored: nil}}})
	if err != nil {
		return errors.Join(err, errors.New("programmer error: the patch cannot be encoded"))
	}
	if err := c.Patch(types.MergePatchType).AbsPath(leasePath).Body(patch).Do(ctx).Error(); err != nil {
		return fmt.Errorf("finishing the restore: %w", err)
	}
	_, err = fmt.Fprintln(t.Streams.Out, "The restore is finished.")
	return err
}
