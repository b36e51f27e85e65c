package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/progress"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rpc/nodeimage"
)

// NewCommand returns the command "rikctl image".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "List, pull, import, export and remove the images of nodes",
		Long: `List, pull, import, export and remove the images that nodes have. A node without
access to a registry gets its images with "rikctl image import".

The commands act on all nodes, or on those of --node. They need rights on
nodes/images: get to list, create to pull and import, delete to remove, and export.`,
	}, t.listCommand(), t.pullCommand(), t.importCommand(), t.exportCommand(), t.removeCommand())
}

// addNodes adds the flag --node.
func (t *tool) addNodes(cmd *cobra.Command, nodes *[]string) {
	cmd.Flags().StringSliceVar(nodes, "node", nil, "the nodes; all by default")
	_ = cmd.RegisterFlagCompletionFunc("node", target.CompleteNodes(t.Factory))
}

// nodes returns the chosen nodes, or all.
func (t *tool) nodes(ctx context.Context, chosen []string) ([]string, error) {
	if len(chosen) > 0 {
		return target.NodeNames(chosen), nil
	}
	c, err := t.Client()
	if err != nil {
		return nil, err
	}
	var list rikv1alpha1.NodeList
	if err := c.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing the nodes: %w", err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	if len(names) == 0 {
		return nil, clierror.NotFound(errors.New("the cluster has no nodes"))
	}
	slices.Sort(names)
	return names, nil
}

// nodesAtOnce is how many nodes are asked at the same time.
const nodesAtOnce = 16

// each calls do for every node, and returns all errors in the order of the nodes.
func each(nodes []string, atOnce int, do func(i int, node string) error) error {
	problems := make([]error, len(nodes))
	slots := make(chan struct{}, atOnce)
	var group sync.WaitGroup
	for i, node := range nodes {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			problems[i] = do(i, node)
		})
	}
	group.Wait()
	return errors.Join(problems...)
}

// request starts a request for the images of a node.
func request(c *rest.RESTClient, verb, node string) *rest.Request {
	return c.Verb(verb).Resource("nodes").Name(node).SubResource(nodeimage.Subresource)
}

func (t *tool) listCommand() *cobra.Command {
	var nodes []string
	var output string
	var bare bool
	cmd := &cobra.Command{
		Use:     "ls [IMAGE]",
		Aliases: []string{"list"},
		Short:   "List the images of nodes",
		Long: `List the images of nodes, with the digest, the unpacked size with shared layers,
the instances that use them, and the time of the last start from them.`,
		Example: cmdline.Example(`
rikctl image ls
rikctl image ls nginx:1.27 --node n1
rikctl image ls -o json`),
		Args: cmdline.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckOutput(cmd, output); err != nil {
				return err
			}
			return t.list(cmd.Context(), nodes, strings.Join(given, ""), output, !bare)
		},
	}
	t.addNodes(cmd, &nodes)
	printer.AddOutput(cmd, &output)
	cmd.Flags().BoolVar(&bare, "no-headers", false, "do not print the headings")
	return cmd
}

// nodeImage is an image in a list over nodes.
type nodeImage struct {
	Node            string `json:"node"`
	nodeimage.Image `json:",inline"`
}

// imagesOf returns the images of a node.
func imagesOf(ctx context.Context, c *rest.RESTClient, node string) ([]nodeimage.Image, error) {
	body, err := request(c, "GET", node).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the images of node %s: %w", node, err)
	}
	defer func() { _ = body.Close() }()
	var list nodeimage.List
	if err := json.NewDecoder(io.LimitReader(body, maxList)).Decode(&list); err != nil {
		return nil, fmt.Errorf("reading the images of node %s: %w", node, err)
	}
	return list.Items, nil
}

// maxList limits the list of a node, which is not trusted.
const maxList = 64 << 20

// list prints what it has, also if some nodes do not answer.
func (t *tool) list(ctx context.Context, chosen []string, name, output string, headings bool) error {
	nodes, err := t.nodes(ctx, chosen)
	if err != nil {
		return err
	}
	c, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	found := make([][]nodeImage, len(nodes))
	failed := each(nodes, nodesAtOnce, func(i int, node string) error {
		images, err := imagesOf(ctx, c, node)
		for _, img := range images {
			if name == "" || matches(img.Reference, name) {
				found[i] = append(found[i], nodeImage{node, img})
			}
		}
		return err
	})
	all := slices.Concat(found...)
	if output != "" {
		if all == nil {
			all = []nodeImage{}
		}
		return errors.Join(printer.Data(t.Streams.Out, map[string]any{"items": all}, output), failed)
	}
	if len(all) == 0 && failed == nil {
		if name != "" {
			return clierror.NotFound(fmt.Errorf("no node has the image %q", name))
		}
		_, _ = fmt.Fprintln(t.Streams.ErrOut, "The nodes have no images.")
		return nil
	}
	return errors.Join(t.table(all, headings, time.Now()), failed)
}

func (t *tool) table(images []nodeImage, headings bool, now time.Time) error {
	w := printers.GetNewTabWriter(t.Streams.Out)
	if headings {
		_, _ = fmt.Fprintln(w, "NODE\tIMAGE\tDIGEST\tSIZE\tUSED BY\tLAST USED")
	}
	for i := range images {
		_, _ = fmt.Fprintln(w, row(&images[i], now))
	}
	return w.Flush()
}

// row is a line of the table, relative to the time now. The words are the node's, so they are
// escaped.
func row(img *nodeImage, now time.Time) string {
	_, digest, _ := strings.Cut(img.Digest, ":")
	used := "<none>"
	if n := len(img.UsedBy); n > 0 {
		used = img.UsedBy[0]
		if n > 1 {
			used += fmt.Sprintf(" and %d more", n-1)
		}
	}
	cells := []string{img.Node, img.Reference, digest[:min(len(digest), 12)], progress.Bytes(img.Bytes), used, duration.HumanDuration(max(now.Sub(img.LastUsed), 0)) + " ago"}
	for i, cell := range cells {
		cells[i] = printers.EscapeTerminal(cell)
	}
	return strings.Join(cells, "\t")
}

// matches reports whether a reference is the image with a name as users write it: without the
// default registry, or without the tag latest.
func matches(reference, name string) bool {
	for _, prefix := range []string{"", "docker.io/", "docker.io/library/"} {
		for _, suffix := range []string{"", ":latest"} {
			if reference == prefix+strings.TrimPrefix(name, "docker://")+suffix {
				return true
			}
		}
	}
	return false
}

func (t *tool) removeCommand() *cobra.Command {
	var nodes []string
	cmd := &cobra.Command{
		Use:     "rm IMAGE...",
		Aliases: []string{"remove", "delete"},
		Short:   "Remove images from nodes",
		Long: `Remove images from nodes. A node refuses to remove an image that one of its
instances needs, and names the instances. An image that came from the node's
directory of image archives is loaded again when the node starts.`,
		Example: cmdline.Example(`
rikctl image rm nginx:1.27
rikctl image rm nginx:1.27 redis:7 --node n1`),
		Args: cmdline.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return t.remove(cmd.Context(), nodes, given)
		},
	}
	t.addNodes(cmd, &nodes)
	return cmd
}

func (t *tool) remove(ctx context.Context, chosen, images []string) error {
	nodes, err := t.nodes(ctx, chosen)
	if err != nil {
		return err
	}
	c, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	var problems []error
	for _, name := range images {
		var mu sync.Mutex
		removed, absent := 0, 0
		problems = append(problems, each(nodes, nodesAtOnce, func(_ int, node string) error {
			result := request(c, "DELETE", node).Param(nodeimage.ParamReference, name).Do(ctx)
			err := result.Error() // Raw does not parse the server's message
			mu.Lock()
			defer mu.Unlock()
			if apierrors.IsNotFound(err) && len(chosen) == 0 {
				absent++
				return nil
			}
			if err != nil {
				return clierror.WithNext(fmt.Errorf("removing %s: %w", name, err), `"rikctl image ls `+cmdline.Quote(name)+`" shows who uses it`)
			}
			removed++
			var r nodeimage.Removed
			data, err := result.Raw()
			if err == nil {
				err = json.Unmarshal(data, &r)
			}
			if err != nil {
				return fmt.Errorf("reading the answer of node %s: %w", node, err)
			}
			_, _ = fmt.Fprintf(t.Streams.Out, "node/%s: removed %s (%s freed)\n", node, printers.EscapeTerminal(r.Reference), progress.Bytes(r.FreedBytes))
			return nil
		}))
		if removed == 0 && absent == len(nodes) {
			problems = append(problems, clierror.NotFound(fmt.Errorf("no node has the image %q", name)))
		}
	}
	return errors.Join(problems...)
}
