package exec

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	kubeexec "k8s.io/kubectl/pkg/cmd/exec"
	"k8s.io/kubectl/pkg/util/term"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/scheme"
	"rik.dev/rik/internal/rikctl/target"
)

// execRequest holds the arguments of exec.
type execRequest struct {
	target    target.Target
	container string
	command   []string
	stdin     bool
	tty       bool
	quiet     bool
}

// NewCommand returns the command "rikctl exec".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	r := execRequest{}
	cmd := &cobra.Command{
		Use:   "exec INSTANCE [-c CONTAINER] -- COMMAND [ARGUMENT...]",
		Short: "Run a command in an instance",
		Long: `Run a command in a container of an instance, or of the first running instance of
workload/NAME. The exit code is that of the command.`,
		Example: cmdline.Example(`
rikctl exec web-x7k2p -- cat /etc/hosts
rikctl exec -it workload/web -- sh`),
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     target.CompleteInstance(t.Factory),
		RunE: func(cmd *cobra.Command, given []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(given) < 2 {
				return cmdline.Errorf(cmd, "an instance, -- and a command are required, such as: rikctl exec web-x7k2p -- ls -l")
			}
			tg, err := target.Parse(given[0])
			if err != nil {
				return cmdline.Wrap(cmd, err)
			}
			r.target, r.command = tg, given[1:]
			return t.runExec(cmd.Context(), r)
		},
	}
	cmd.Flags().StringVarP(&r.container, "container", "c", "", "container; the first one by default")
	cmd.Flags().BoolVarP(&r.stdin, "stdin", "i", false, "pass the standard input to the command")
	cmd.Flags().BoolVarP(&r.tty, "tty", "t", false, "give the command a terminal")
	cmd.Flags().BoolVarP(&r.quiet, "quiet", "q", false, "print only the output of the command")
	return cmd
}

func (t *tool) runExec(ctx context.Context, r execRequest) error {
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return err
	}
	instances, err := r.target.Instances(ctx, c, namespace)
	if err != nil {
		return err
	}
	instance, err := target.FirstRunning(instances, r.container)
	if err != nil {
		return err
	}
	err = t.session(ctx, instance, r)
	var ended utilexec.ExitError
	if errors.As(err, &ended) && ended.Exited() {
		return clierror.CodeError{Code: ended.ExitStatus()}
	}
	if err != nil {
		return fmt.Errorf("running a command in instance %s: %w", instance.Name, err)
	}
	return nil
}

// session connects the command's streams to the streams of this process until the command ends.
func (t *tool) session(ctx context.Context, i *rikv1alpha1.Instance, r execRequest) error {
	c, restConfig, err := t.RESTClient()
	if err != nil {
		return err
	}
	o := kubeexec.StreamOptions{IOStreams: t.Streams, Stdin: r.stdin, TTY: r.tty, Quiet: r.quiet}
	tty := o.SetupTTY()
	var sizes remotecommand.TerminalSizeQueue
	if tty.Raw {
		sizes = sizeQueue{tty.MonitorSize(tty.GetSize())}
		o.ErrOut = nil // a terminal has one output
	}
	return tty.Safe(func() error {
		url := c.Post().Namespace(i.Namespace).Resource("instances").Name(i.Name).SubResource("exec").
			VersionedParams(&rikv1alpha1.InstanceExecOptions{
				Container: r.container, Command: r.command,
				Stdin: o.Stdin, Stdout: true, Stderr: o.ErrOut != nil, TTY: tty.Raw,
			}, scheme.ParameterCodec).URL()
		return (&kubeexec.DefaultRemoteExecutor{}).ExecuteWithContext(ctx, url, restConfig, o.In, o.Out, o.ErrOut, tty.Raw, sizes)
	})
}

// sizeQueue converts terminal sizes to the type of the stream.
type sizeQueue struct{ term.TerminalSizeQueue }

// Next blocks until the size changes. nil marks the end of the queue.
func (q sizeQueue) Next() *remotecommand.TerminalSize {
	if q.TerminalSizeQueue == nil {
		return nil
	}
	size := q.TerminalSizeQueue.Next()
	if size == nil {
		return nil
	}
	return &remotecommand.TerminalSize{Width: size.Width, Height: size.Height}
}
