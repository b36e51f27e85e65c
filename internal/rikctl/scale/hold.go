package scale

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/waiting"
)

// holdTimeout is how long the command waits for the status to follow the node.
const holdTimeout = 30 * time.Second

// holding is one of the two directions: suspend or resume.
type holding struct {
	subresource, past string
	suspended         bool
	toDisk            bool
}

// heldInstance is the result for one instance, for scripts.
type heldInstance struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Suspended bool   `json:"suspended"`

	printer.Outcome `json:",inline"`
}

// holdResult is the result of "suspend" and "resume" for scripts.
type holdResult struct {
	Items []heldInstance `json:"items"`

	printer.Outcome `json:",inline"`
}

var (
	suspending = holding{subresource: "suspend", past: "suspended", suspended: true}
	resuming   = holding{subresource: "resume", past: "resumed"}
)

// NewSuspendCommand returns the command "rikctl suspend".
func NewSuspendCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return t.holdCommand(suspending, &cobra.Command{
		Use:   "suspend INSTANCE...",
		Short: "Suspend instances",
		Long: `Suspend all processes of instances, or of every instance of workload/NAME. The
processes keep their memory and their connections, and get no CPU time. A
suspended instance is not ready, so it gets no traffic, and it is not probed.

--to-disk writes the memory of microVMs to the disk of their node and frees it.
They stay suspended when the node restarts, have no address until they are resumed,
and lose their connections. If the memory cannot be used any more, for example after
an update of the VMM, the instance starts again from the beginning. Resume then
reports it.`,
		Example: cmdline.Example(`
rikctl suspend web-x7k2p
rikctl suspend app/helloworld
rikctl suspend --to-disk workload/thumbnails`),
	})
}

// NewResumeCommand returns the command "rikctl resume".
func NewResumeCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return t.holdCommand(resuming, &cobra.Command{
		Use:   "resume INSTANCE...",
		Short: "Resume suspended instances",
		Long:  "Resume suspended instances, or all suspended instances of workload/NAME.",
		Example: cmdline.Example(`
rikctl resume web-x7k2p`),
	})
}

func (t *tool) holdCommand(h holding, cmd *cobra.Command) *cobra.Command {
	timeout, waits, output := holdTimeout, true, ""
	cmd.Args = cmdline.Args(cobra.MinimumNArgs(1))
	cmd.ValidArgsFunction = target.CompleteInstances(t.Factory)
	cmd.Flags().DurationVar(&timeout, "timeout", holdTimeout, "timeout of the wait for the status")
	cmd.Flags().BoolVar(&waits, "wait", true, "wait until the status shows the change")
	printer.AddOutput(cmd, &output)
	if h.suspended {
		cmd.Flags().BoolVar(&h.toDisk, "to-disk", false, "write the memory of microVMs to their node's disk")
	}
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if err := printer.CheckOutput(cmd, output); err != nil {
			return err
		}
		var targets []target.Target
		for _, arg := range given {
			tg, err := target.Parse(arg)
			if err != nil {
				return cmdline.Wrap(cmd, err)
			}
			targets = append(targets, tg)
		}
		if !waits {
			timeout = 0
		} else if timeout <= 0 {
			return cmdline.Errorf(cmd, "--timeout must be above 0; --wait=false does not wait")
		}
		result := holdResult{Items: []heldInstance{}}
		err := t.runHold(cmd.Context(), h, targets, timeout, func(i *rikv1alpha1.Instance, err error) {
			item := heldInstance{Namespace: i.Namespace, Name: i.Name, Suspended: h.suspended}
			if err != nil {
				item.Suspended, item.Error = i.Status.Suspended, err.Error()
			} else if output == "" {
				_, _ = fmt.Fprintf(t.Streams.Out, "instance/%s %s\n", i.Name, h.past)
			}
			result.Items = append(result.Items, item)
		})
		return printer.Result(t.Streams.Out, output, &result, &result.Outcome, err)
	}
	return cmd
}

// runHold requests the change for one target after the other, and calls ended for each instance. An
// error of one target does not stop the others.
func (t *tool) runHold(ctx context.Context, h holding, targets []target.Target, timeout time.Duration, ended func(*rikv1alpha1.Instance, error)) error {
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return err
	}
	var problems []error
	for _, tg := range targets {
		instances, err := tg.Instances(ctx, c, namespace)
		problems = append(problems, err)
		for i := range instances {
			err := t.hold(ctx, c, h, &instances[i], timeout)
			ended(&instances[i], err)
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

func (t *tool) hold(ctx context.Context, c client.Client, h holding, i *rikv1alpha1.Instance, timeout time.Duration) error {
	rc, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	request := rc.Post().Namespace(i.Namespace).Resource("instances").Name(i.Name).SubResource(h.subresource)
	if h.toDisk {
		request = request.Param(rikv1alpha1.SuspendToDisk, "true")
	}
	err = request.Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("%s of instance %s: %w", h.subresource, i.Name, err)
	}
	if timeout > 0 {
		line := waiting.Begin(ctx, t.Streams.ErrOut, waiting.Options{After: waiting.After})
		line.Set(waiting.State{For: fmt.Sprintf("instance %s to be %s", i.Name, h.past)})
		err := awaitHold(ctx, c, h, i, timeout)
		line.End()
		return err
	}
	return nil
}

// awaitHold waits for the status, which follows the node's next report.
func awaitHold(ctx context.Context, c client.Reader, h holding, i *rikv1alpha1.Instance, timeout time.Duration) error {
	last := &rikv1alpha1.Instance{}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, clierror.TimeoutError{What: fmt.Sprintf("instance %s to be %s: the node has done it, but the status does not show it yet", i.Name, h.past)})
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(i), last); err != nil {
			return false, err
		}
		return last.Status.Suspended == h.suspended, nil
	})
	var late clierror.TimeoutError
	if err != nil && errors.As(context.Cause(ctx), &late) {
		return late
	}
	return err
}
