package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/drain"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/waiting"
)

// drainPoll is the interval between two steps of a drain.
const drainPoll = time.Second

// drainFlags are the flags of drain.
type drainFlags struct {
	drain.Options
	dryRun  bool
	timeout time.Duration
}

// NewDrainCommand returns the command "rikctl drain".
func NewDrainCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	var f drainFlags
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move the instances of a node to other nodes",
		Long: `Cordon a node and move its instances to other nodes. Instances are deleted as fast
as spec.disruption.maxUnavailable of their workloads allows (1 by default), and
the controller starts replacements on other nodes. The command waits until the
replacements are ready. After an interruption or a timeout, run it again to
continue. Drains of several nodes at once take turns with each workload.

Nothing replaces the instances of a workload with deploy: Manual. They stop the
drain before it deletes anything, unless --force is given.`,
		Args:              cmdline.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: target.CompleteNodes(t.Factory),
		RunE: func(cmd *cobra.Command, given []string) error {
			if f.timeout < 0 {
				return cmdline.Errorf(cmd, "--timeout must not be negative; 0 means no timeout")
			}
			return t.runDrain(cmd.Context(), target.NodeNames(given)[0], f)
		},
	}
	cmd.Flags().BoolVar(&f.Force, "force", false, "also delete instances that nothing replaces")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the first step, and do nothing")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "timeout, after which the exit code is 5; 0 means no timeout")
	cmd.Flags().Int64Var(&f.Grace, "grace-period", -1, "seconds between SIGTERM and SIGKILL; -1 uses the value of the workload")
	return cmd
}

func (t *tool) runDrain(ctx context.Context, node string, f drainFlags) error {
	c, err := t.Client()
	if err != nil {
		return err
	}
	if f.dryRun {
		return t.drainDryRun(ctx, c, node, f)
	}
	if err := t.setUnschedulable(ctx, c, node, true); err != nil {
		return err
	}
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	baseline, err := drain.Resume(ctx, c, node)
	if err != nil {
		return err
	}
	line := waiting.Begin(ctx, t.Streams.ErrOut, waiting.Options{})
	defer line.End()
	d := &drain.Executor{Client: c, Node: node, Options: f.Options, Out: line.Above(t.Streams.Out), Waits: line.Set, Baseline: baseline, Kept: maps.Clone(baseline)}
	err = wait.PollUntilContextCancel(ctx, drainPoll, true, d.Step)
	line.End()
	if errors.Is(err, context.DeadlineExceeded) {
		seen := "its instances could not be read in that time"
		if d.Said != "" {
			seen = "last seen waiting for " + d.Said
		}
		return clierror.TimeoutError{What: fmt.Sprintf("node %s to be drained; %s", node, seen)}
	}
	if err != nil {
		return err
	}
	if err := d.Remember(ctx, nil); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(t.Streams.Out, "node/%s drained\n", node)
	return nil
}

func (t *tool) drainDryRun(ctx context.Context, c client.Client, node string, f drainFlags) error {
	n := &rikv1alpha1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
		return err
	}
	d := &drain.Executor{Client: c, Node: node, Options: f.Options, Out: t.Streams.Out, Baseline: map[string]int{}}
	s, err := d.State(ctx)
	if err != nil {
		return err
	}
	if !n.Spec.Unschedulable {
		_, _ = fmt.Fprintf(t.Streams.Out, "node/%s would be cordoned\n", node)
	}
	step := drain.Plan(s)
	if step.Done {
		_, _ = fmt.Fprintf(t.Streams.Out, "nothing would be deleted: node/%s has no instances to move\n", node)
	}
	for _, i := range step.Evict {
		_, _ = fmt.Fprintf(t.Streams.Out, "instance/%s in namespace %s would be deleted first\n", i.Name, i.Namespace)
	}
	for _, w := range step.Waiting {
		_, _ = fmt.Fprintf(t.Streams.Out, "the drain would wait for %s\n", w)
	}
	return drain.Blocked(node, step, "--force deletes them too; this dry run changed nothing")
}
