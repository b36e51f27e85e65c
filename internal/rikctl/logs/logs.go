package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/scheme"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/trouble"
)

// logFlags are the flags of logs.
type logFlags struct {
	options rikv1alpha1.InstanceLogOptions
	tail    int64
	since   time.Duration
	prefix  bool
}

// NewCommand returns the command "rikctl logs".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	f := &logFlags{}
	cmd := &cobra.Command{
		Use:   "logs INSTANCE | workload/NAME",
		Short: "Print the logs of instances",
		Long: `Print the logs of the containers of an instance, or of all instances of a workload.
For a workload, each line starts with the name of its instance.`,
		Example: cmdline.Example(`
rikctl logs web-x7k2p
rikctl logs web-x7k2p -c proxy --previous
rikctl logs workload/web -f --tail=20 --since=10m`),
		Args:              cmdline.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: target.CompleteInstance(t.Factory),
		RunE: func(cmd *cobra.Command, given []string) error {
			tg, err := target.Parse(given[0])
			if err != nil {
				return cmdline.Wrap(cmd, err)
			}
			if err := f.complete(); err != nil {
				return cmdline.Wrap(cmd, err)
			}
			return t.runLogs(cmd.Context(), tg, f)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.options.Follow, "follow", "f", false, "keep printing new lines")
	flags.StringVarP(&f.options.Container, "container", "c", "", "container; the first one by default")
	flags.BoolVarP(&f.options.Previous, "previous", "p", false, "print the log of the container's previous run")
	flags.BoolVar(&f.options.Timestamps, "timestamps", false, "put the time before each line")
	flags.Int64Var(&f.tail, "tail", -1, "number of lines from the end; -1 for all")
	flags.DurationVar(&f.since, "since", 0, "print only lines newer than this, such as 10m")
	flags.BoolVar(&f.prefix, "prefix", false, "put the instance's name before each line")
	return cmd
}

// complete checks the flags and puts them into the options.
func (f *logFlags) complete() error {
	switch {
	case f.tail < -1:
		return errors.New("--tail must be -1 or more")
	case f.since < 0:
		return errors.New("--since must not be negative")
	case f.options.Follow && f.options.Previous:
		return errors.New("--follow and --previous exclude each other: a run that has ended writes nothing more")
	}
	if f.tail >= 0 {
		f.options.TailLines = &f.tail
	}
	if f.since > 0 {
		// Round up: the server counts whole seconds, and 0 means all.
		seconds := int64((f.since + time.Second - 1) / time.Second)
		f.options.SinceSeconds = &seconds
	}
	return nil
}

func (t *tool) runLogs(ctx context.Context, tg target.Target, f *logFlags) error {
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return err
	}
	streams, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	instances, err := tg.Instances(ctx, c, namespace)
	if err != nil {
		return err
	}
	out := &lineWriter{out: t.Streams.Out}
	prefix := f.prefix || tg.Workload
	if !f.options.Follow {
		var problems []error
		for i := range instances {
			problems = append(problems, copyLog(ctx, streams, &instances[i], f, out, prefix))
		}
		return errors.Join(problems...)
	}
	for n := range instances {
		i := &instances[n]
		if container, why := trouble.NotStarted(i, f.options.Container); why != nil {
			_, _ = fmt.Fprintf(t.Streams.ErrOut, "waiting for container %s of instance %s, which has not started: %s\n",
				container, i.Name, printers.EscapeTerminal(why.Error()))
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range instances {
		group.Go(func() error { return copyLog(ctx, streams, &instances[i], f, out, prefix) })
	}
	return group.Wait()
}

func copyLog(ctx context.Context, c rest.Interface, i *rikv1alpha1.Instance, f *logFlags, out *lineWriter, prefix bool) error {
	body, err := c.Get().Namespace(i.Namespace).Resource("instances").Name(i.Name).SubResource("log").
		VersionedParams(&f.options, scheme.ParameterCodec).Stream(ctx)
	if err != nil {
		return fmt.Errorf("reading the log of instance %s: %w", i.Name, err)
	}
	defer body.Close()
	if !prefix {
		_, err = io.Copy(out.out, body)
	} else {
		err = out.copyLines("["+i.Name+"] ", body)
	}
	if ctx.Err() != nil {
		return ctx.Err() // the stream's error says only that it was cut
	}
	var cut http2.StreamError
	if errors.As(err, &cut) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = clierror.WithNext(errors.New("the stream broke off: the connection to the server, or from the server to the node, was lost"), `"rikctl get nodes" shows whether the instance's node is Ready`)
	}
	if err != nil {
		return fmt.Errorf("reading the log of instance %s: %w", i.Name, err)
	}
	return nil
}

// lineWriter keeps lines of several logs from mixing.
type lineWriter struct {
	mu  sync.Mutex
	out io.Writer // written under mu if there are several logs
}

// copyLines writes each line after the prefix. Lines can have any length.
func (w *lineWriter) copyLines(prefix string, from io.Reader) error {
	r := bufio.NewReaderSize(from, linesAtOnce)
	var lines []byte
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			lines = append(append(lines, prefix...), line...)
			if line[len(line)-1] != '\n' {
				lines = append(lines, '\n')
			}
		}
		// Write all lines that have arrived, in one write and without delay.
		next, _ := r.Peek(r.Buffered())
		if len(lines) > 0 && (err != nil || len(lines) >= linesAtOnce || bytes.IndexByte(next, '\n') < 0) {
			if err := w.write(lines); err != nil {
				return err
			}
			lines = lines[:0]
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// linesAtOnce is the amount of text per write, in bytes.
const linesAtOnce = 32 << 10

func (w *lineWriter) write(lines []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.out.Write(lines)
	return err
}
