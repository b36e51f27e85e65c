package rikctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	kubeexec "k8s.io/kubectl/pkg/cmd/exec"
	"k8s.io/kubectl/pkg/util/term"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// execRequest holds the arguments of exec.
type execRequest struct {
	target    target
	container string
	command   []string
	stdin     bool
	tty       bool
	quiet     bool
}

func (t *tool) execCommand() *cobra.Command {
	r := execRequest{}
	cmd := &cobra.Command{
		Use:   "exec INSTANCE [-c CONTAINER] -- COMMAND [ARGUMENT...]",
		Short: "Run a command in an instance",
		Long: `Run a command in a container of an instance, or of the first running instance of
workload/NAME. Ends with the command's exit code.`,
		Example: indent(`
rikctl exec web-x7k2p -- cat /etc/hosts
rikctl exec -it workload/web -- sh`),
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     t.completeInstances,
		RunE: func(cmd *cobra.Command, given []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(given) < 2 {
				return usagef(cmd, "one instance, then -- and the command, such as: rikctl exec web-x7k2p -- ls -l")
			}
			tg, err := parseTarget(given[0])
			if err != nil {
				return usageError{cmd.CommandPath(), err}
			}
			r.target, r.command = tg, given[1:]
			return t.runExec(cmd.Context(), r)
		},
	}
	cmd.Flags().StringVarP(&r.container, "container", "c", "", "container; the first one by default")
	cmd.Flags().BoolVarP(&r.stdin, "stdin", "i", false, "pass the standard input on")
	cmd.Flags().BoolVarP(&r.tty, "tty", "t", false, "give the command a terminal")
	cmd.Flags().BoolVarP(&r.quiet, "quiet", "q", false, "print nothing but what the command does")
	return cmd
}

func (t *tool) runExec(ctx context.Context, r execRequest) error {
	namespace, err := t.namespace()
	if err != nil {
		return err
	}
	c, err := t.client()
	if err != nil {
		return err
	}
	instances, err := r.target.instances(ctx, c, namespace)
	if err != nil {
		return err
	}
	instance, err := firstRunning(instances, r.container)
	if err != nil {
		return err
	}
	err = t.session(ctx, instance, r)
	var ended utilexec.ExitError
	if errors.As(err, &ended) && ended.Exited() {
		return exitError{ended.ExitStatus()}
	}
	if err != nil {
		return fmt.Errorf("running a command in instance %s: %w", instance.Name, err)
	}
	return nil
}

// firstRunning picks the instance to run a command in. It prefers a Running instance. Otherwise
// it takes one whose container already runs while the instance is still Creating or waits for
// another container.
func firstRunning(instances []rikv1alpha1.Instance, container string) (*rikv1alpha1.Instance, error) {
	for i := range instances {
		if instances[i].Status.Phase == rikv1alpha1.InstanceRunning {
			return &instances[i], nil
		}
	}
	for i := range instances {
		if containerRuns(&instances[i], container) {
			return &instances[i], nil
		}
	}
	i := &instances[0]
	if err := validateContainer(i, container); err != nil {
		return nil, err
	}
	return nil, advised{fmt.Errorf("instance %s is %s, not Running", i.Name, phaseOf(i)),
		fmt.Sprintf("\"rikctl describe instance %s\" says why", i.Name)}
}

// validateContainer reports what prevents running a command in the named container, as far as
// the status shows.
func validateContainer(i *rikv1alpha1.Instance, name string) error {
	all := slices.Concat(i.Status.Containers, i.Status.InitContainers)
	if name == "" || len(all) == 0 {
		return nil
	}
	var names []string
	for _, c := range all {
		if c.Name == name {
			return advised{fmt.Errorf("container %s of instance %s is %s (%s)", name, i.Name, c.State, cmp.Or(c.Reason, string(phaseOf(i)))),
				fmt.Sprintf("\"rikctl describe instance %s\" says why", i.Name)}
		}
		names = append(names, c.Name)
	}
	return invalidError{"instance " + i.Name, fmt.Errorf("container %q is not in it; it has: %s", name, strings.Join(names, ", "))}
}

// containerRuns reports whether the status shows the container as running. Without a name it
// means the first container.
func containerRuns(i *rikv1alpha1.Instance, name string) bool {
	all := slices.Concat(i.Status.Containers, i.Status.InitContainers)
	if name == "" {
		all = all[:min(1, len(i.Status.Containers))]
	}
	return slices.ContainsFunc(all, func(c rikv1alpha1.ContainerStatus) bool {
		return (name == "" || c.Name == name) && c.State == rikv1alpha1.ContainerRunning
	})
}

func phaseOf(i *rikv1alpha1.Instance) rikv1alpha1.InstancePhase {
	if i.Status.Phase == "" {
		return rikv1alpha1.InstancePending
	}
	return i.Status.Phase
}

// session connects the command's streams to the streams of this process until the command ends.
func (t *tool) session(ctx context.Context, i *rikv1alpha1.Instance, r execRequest) error {
	c, restConfig, err := t.restClient()
	if err != nil {
		return err
	}
	o := kubeexec.StreamOptions{IOStreams: t.streams, Stdin: r.stdin, TTY: r.tty, Quiet: r.quiet}
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
			}, parameters).URL()
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
