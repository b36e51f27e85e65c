package image

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/progress"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rpc/nodeimage"
)

func addOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", "json for a line of JSON for each event, or text when empty")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveNoFileComp))
}

func (t *tool) pullCommand() *cobra.Command {
	var nodes []string
	var output, secret string
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Pull an image onto nodes",
		Long: `Pull an image from its registry onto nodes, so that instances start without waiting for
it. The registry is asked also if a node has the image, because a tag may have
changed. Without --secret, the nodes use their own credentials if they have any.

An image on a node is available to all workloads that do not set
imagePullPolicy: Always.`,
		Example: cmdline.Example(`
rikctl image pull nginx:1.27
rikctl image pull registry.example/team/app:3 --secret registry -n team --node n1`),
		Args: cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckJSON(cmd, output); err != nil {
				return err
			}
			return t.pull(cmd.Context(), nodes, given[0], secret, output)
		},
	}
	t.addNodes(cmd, &nodes)
	addOutput(cmd, &output)
	cmd.Flags().StringVar(&secret, "secret", "", "Secret of type kubernetes.io/dockerconfigjson, in the namespace of the command, with credentials for the registry")
	return cmd
}

func (t *tool) pull(ctx context.Context, chosen []string, name, secret, output string) error {
	body, err := t.credentials(ctx, secret)
	if err != nil {
		return err
	}
	nodes, err := t.nodes(ctx, chosen)
	if err != nil {
		return err
	}
	return t.transfer(ctx, "pulled", nodes, output, nodesAtOnce, func(_ int, r *rest.Request) sending {
		r = r.Param(nodeimage.ParamPull, name)
		if body != nil {
			r = r.SetHeader("Content-Type", nodeimage.MediaTypeJSON).Body(body)
		}
		return sending{request: r}
	})
}

// credentials reads a Secret, with the rights of the user. It returns nil for no name.
func (t *tool) credentials(ctx context.Context, name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret); err != nil {
		return nil, err
	}
	config, ok := secret.Data[corev1.DockerConfigJsonKey]
	if !ok {
		return nil, clierror.WithNext(fmt.Errorf("secret %s/%s has no key %s", namespace, name, corev1.DockerConfigJsonKey),
			"the Secret must have the type kubernetes.io/dockerconfigjson")
	}
	return json.Marshal(nodeimage.Credentials{DockerConfigJSON: config})
}

func (t *tool) importCommand() *cobra.Command {
	var nodes []string
	var output, name string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Import the images of an archive onto nodes",
		Long: `Import all images of an archive onto nodes. The archive is an OCI layout or a docker
archive in a tar file, plain or compressed with gzip or zstd. "docker save",
"podman save", "skopeo copy" and "rikctl image export" write such archives. With - it is
read from standard input.

The images have the names that the archive gives them. If it gives only a tag, --name
sets the repository; if it has one image, --name sets its whole name. A node does not
remove imported images by itself; "rikctl image rm" does.`,
		Example: cmdline.Example(`
rikctl image import images.tar
docker save app:1 db:2 | rikctl image import -
rikctl image import app.tar --name registry.example/app:1 --node n1`),
		Args: cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckJSON(cmd, output); err != nil {
				return err
			}
			return t.load(cmd.Context(), nodes, given[0], name, output)
		},
	}
	t.addNodes(cmd, &nodes)
	addOutput(cmd, &output)
	cmd.Flags().StringVar(&name, "name", "", "name of an image that the archive does not name fully")
	return cmd
}

func (t *tool) load(ctx context.Context, chosen []string, file, name, output string) error {
	nodes, err := t.nodes(ctx, chosen)
	if err != nil {
		return err
	}
	src, err := t.openArchive(file, len(nodes))
	if err != nil {
		return err
	}
	defer src.close()
	atOnce := nodesAtOnce
	if src.file == nil {
		atOnce = len(nodes) // all of them must read
	}
	return t.transfer(ctx, "imported", nodes, output, atOnce, func(i int, r *rest.Request) sending {
		body := &counter{r: src.reader(i)}
		return sending{
			request: r.Param(nodeimage.ParamImport, name).SetHeader("Content-Type", nodeimage.MediaTypeArchive).Body(io.Reader(body)),
			body:    body, size: src.size,
		}
	})
}

// archive is an open archive for several nodes.
type archive struct {
	size   int64 // 0: not known
	file   *os.File
	copies []*io.PipeReader // of a stream
	ended  sync.WaitGroup
}

// openArchive opens a file, which each node reads by itself, or standard input, which is copied to all
// nodes at the speed of the slowest.
func (t *tool) openArchive(name string, nodes int) (*archive, error) {
	a := &archive{}
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, clierror.File(err)
		}
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			a.file, a.size = file, info.Size()
			return a, nil
		}
		a.split(file, nodes)
		return a, nil
	}
	a.split(t.Streams.In, nodes)
	return a, nil
}

// split copies a stream to readers. A reader that is closed gets no more of it.
func (a *archive) split(from io.Reader, n int) {
	writers := make([]*io.PipeWriter, n)
	for i := range writers {
		var r *io.PipeReader
		r, writers[i] = io.Pipe()
		a.copies = append(a.copies, r)
	}
	a.ended.Go(func() {
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			left := 0
			for i, w := range writers {
				if w == nil {
					continue
				}
				if n > 0 {
					if _, gone := w.Write(buffer[:n]); gone != nil {
						writers[i] = nil
						continue
					}
				}
				if err != nil {
					_ = w.CloseWithError(err) // io.EOF is a good end
				}
				left++
			}
			if err != nil || left == 0 {
				return
			}
		}
	})
}

// reader returns the reader of a node. It can be called once for each.
func (a *archive) reader(i int) io.Reader {
	if a.file != nil {
		return io.NewSectionReader(a.file, 0, a.size)
	}
	return a.copies[i]
}

// close ends the copies. A read of standard input that blocks ends with the process.
func (a *archive) close() {
	for _, r := range a.copies {
		_ = r.Close()
	}
	if a.file != nil {
		_ = a.file.Close()
	}
}

// counter counts what the HTTP client has sent. The node's speed limits that.
type counter struct {
	r     io.Reader
	n     atomic.Int64
	ended atomic.Bool
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	if err != nil {
		c.ended.Store(true)
	}
	return n, err
}

// Close implements io.Closer, for the HTTP client.
func (c *counter) Close() error {
	if closer, ok := c.r.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// nodeEvent is a line of the JSON output.
type nodeEvent struct {
	Node            string `json:"node"`
	nodeimage.Event `json:",inline"`
}

// sending is the request for one node.
type sending struct {
	request *rest.Request
	body    *counter // nil: nothing long is sent
	size    int64    // of the body; 0: not known
}

// state says how much was sent. It is false for a request without a long body, and after all of it.
func (s sending) state() (progress.State, bool) {
	if s.body == nil || s.body.ended.Load() {
		return progress.State{}, false
	}
	return progress.State{Text: "sending the archive", Bytes: s.body.n.Load(), Total: s.size}, true
}

// transfer makes one request for each node and shows the events. build completes the request for the
// node with that index.
func (t *tool) transfer(ctx context.Context, verb string, nodes []string, output string, atOnce int, build func(i int, r *rest.Request) sending) error {
	c, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	display := progress.New(t.Streams.ErrOut, output == "json")
	defer display.Close()
	var lines sync.Mutex
	return each(nodes, atOnce, func(i int, node string) error {
		w := &watcher{node: node, verb: verb, task: display.Task("node/" + node), sending: build(i, request(c, "POST", node))}
		w.print = func(e nodeimage.Event, text string) {
			lines.Lock()
			defer lines.Unlock()
			if output == "json" {
				_ = json.NewEncoder(t.Streams.Out).Encode(nodeEvent{node, e})
			} else if text != "" {
				_, _ = fmt.Fprintf(t.Streams.Out, "node/%s: %s\n", node, text)
			}
		}
		return w.run(ctx)
	})
}

// watcher shows one request.
type watcher struct {
	sending

	node, verb string
	task       *progress.Task
	print      func(e nodeimage.Event, text string) // an event, and its text for people or ""
}

func (w *watcher) run(ctx context.Context) error {
	err := w.follow(ctx)
	if w.body != nil {
		_ = w.body.Close() // so that the other nodes do not wait for this one
	}
	w.task.End("")
	if err != nil {
		return fmt.Errorf("node %s: %w", w.node, err)
	}
	return nil
}

// maxLine limits an event. Nodes are not trusted.
const maxLine = 1 << 20

func (w *watcher) follow(ctx context.Context) error {
	body, err := w.request.Stream(ctx)
	if err != nil {
		w.print(nodeimage.Event{Done: &nodeimage.Done{Error: err.Error()}}, "")
		return err
	}
	defer func() { _ = body.Close() }()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e nodeimage.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
		w.print(e, w.text(e))
		if e.Done != nil {
			if e.Done.Error != "" {
				return clierror.FromNode(errors.New(printers.EscapeTerminal(e.Done.Error)))
			}
			return nil
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(errors.New("the connection was lost before the end"), lines.Err())
}

// text shows the progress of an event, or returns its text. The node's words are escaped.
func (w *watcher) text(e nodeimage.Event) string {
	switch {
	case e.Progress != nil:
		state, ok := w.state()
		if !ok {
			state = progress.State{Text: printers.EscapeTerminal(e.Progress.Text), Bytes: e.Progress.Bytes, Total: e.Progress.Total}
		}
		w.task.Set(state)
	case e.Image != nil:
		return fmt.Sprintf("%s %s (%s, %s)", w.verb, printers.EscapeTerminal(e.Image.Reference), printers.EscapeTerminal(e.Image.Digest), progress.Bytes(e.Image.Bytes))
	case e.Failed != nil:
		return fmt.Sprintf("not %s: %s", w.verb, printers.EscapeTerminal(e.Failed.Error))
	}
	return ""
}

// exportResult is the result of an export for scripts.
type exportResult struct {
	Image string `json:"image"`
	Node  string `json:"node"`
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`

	printer.Outcome `json:",inline"`
}

func (t *tool) exportCommand() *cobra.Command {
	var node, output string
	cmd := &cobra.Command{
		Use:   "export IMAGE FILE",
		Short: "Export an image of a node to an archive",
		Long: `Write an image that a node has to an archive, an OCI layout in a tar file. "rikctl image
import", podman, skopeo and containerd read it. With - it is written to standard
output. The archive has the files and settings of the image. Its digests are other
ones, because a node keeps only unpacked layers.

The export shows the files of the image, also if it was pulled with credentials. It
needs the verb export on nodes/images.`,
		Example: cmdline.Example(`
rikctl image export nginx:1.27 nginx.tar
rikctl image export app:1 - --node n1 | gzip > app.tar.gz`),
		Args: cmdline.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckOutput(cmd, output); err != nil {
				return err
			}
			if output != "" && given[1] == "-" {
				return cmdline.Errorf(cmd, "--output needs the standard output, so name a file instead of -")
			}
			result := exportResult{Image: given[0], Node: node, File: given[1]}
			err := t.export(cmd.Context(), &result)
			return printer.Result(t.Streams.Out, output, &result, &result.Outcome, err)
		},
	}
	printer.AddOutput(cmd, &output)
	cmd.Flags().StringVar(&node, "node", "", "the node; by default the first one that has the image")
	_ = cmd.RegisterFlagCompletionFunc("node", target.CompleteNodes(t.Factory))
	return cmd
}

// export writes the image of result to its file, and sets the node and the size.
func (t *tool) export(ctx context.Context, result *exportResult) error {
	name, file := result.Image, result.File
	if file == "-" && progress.IsTerminal(t.Streams.Out) {
		return clierror.WithNext(errors.New("an archive cannot be written to a terminal"), "name a file instead of -")
	}
	c, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	if result.Node == "" {
		if result.Node, err = t.having(ctx, c, name); err != nil {
			return err
		}
	}
	node := result.Node
	body, err := request(c, "GET", node).Param(nodeimage.ParamExport, name).Stream(ctx)
	if err != nil {
		return fmt.Errorf("exporting %s: %w", name, err)
	}
	defer func() { _ = body.Close() }()
	display := progress.New(t.Streams.ErrOut, false)
	defer display.Close()
	task := display.Task("node/" + node)
	read := &meter{r: body, task: task, text: "exporting " + name}
	if file == "-" {
		_, err = io.Copy(t.Streams.Out, read)
	} else {
		err = save(file, read)
	}
	if err != nil {
		task.End("")
		return fmt.Errorf("exporting %s of node %s: %w", name, node, err)
	}
	result.Bytes = read.n
	task.End(fmt.Sprintf("exported %s (%s)", name, progress.Bytes(read.n)))
	return nil
}

// having returns a node that has the image.
func (t *tool) having(ctx context.Context, c *rest.RESTClient, name string) (string, error) {
	nodes, err := t.nodes(ctx, nil)
	if err != nil {
		return "", err
	}
	var problems []error
	for _, node := range nodes {
		images, err := imagesOf(ctx, c, node)
		problems = append(problems, err)
		for _, img := range images {
			if matches(img.Reference, name) {
				return node, nil
			}
		}
	}
	return "", errors.Join(append(problems, clierror.NotFound(fmt.Errorf("no node has the image %q", name)))...)
}

// save writes a new file, and leaves none after an error.
func save(file string, from io.Reader) (err error) {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return clierror.WithNext(clierror.File(err), "name a file that does not exist")
	}
	if err != nil {
		return clierror.File(err)
	}
	_, err = io.Copy(out, from)
	if err = errors.Join(err, out.Close()); err != nil {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// meter shows how much was read.
type meter struct {
	r    io.Reader
	task *progress.Task
	text string
	n    int64
}

// Read implements io.Reader.
func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.n += int64(n)
	m.task.Set(progress.State{Text: m.text, Bytes: m.n})
	return n, err
}
