package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/drain"
	"rik.dev/rik/internal/rikctl/printer"
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
	output  string
}

// drainResult is the result of a drain for scripts.
type drainResult struct {
	Node    string `json:"node"`
	Drained bool   `json:"drained"`
	DryRun  bool   `json:"dryRun,omitempty"`
	// Deleted are the instances that this run has deleted. A dry run has those that a drain would
	// delete first.
	Deleted []namedInstance `json:"deleted"`
	// Waiting is what the drain last waited for, or what it would wait for.
	Waiting []string `json:"waiting,omitempty"`
	// Blocked says, for each instance that stops the drain, why.
	Blocked []string `json:"blocked,omitempty"`

	printer.Outcome `json:",inline"`
}

// namedInstance is the name of an instance.
type namedInstance struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (r *drainResult) deleted(i *rikv1alpha1.Instance) {
	r.Deleted = append(r.Deleted, namedInstance{i.Namespace, i.Name})
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
drain before it deletes anything, unless --force is given.

With -o json or -o yaml, the standard output has one document when the command ends,
also after an error. The steps are then on the standard error.`,
		Args:              cmdline.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: target.CompleteNodes(t.Factory),
		RunE: func(cmd *cobra.Command, given []string) error {
			if f.timeout < 0 {
				return cmdline.Errorf(cmd, "--timeout must not be negative; 0 means no timeout")
			}
			if err := printer.CheckOutput(cmd, f.output); err != nil {
				return err
			}
			r := drainResult{Node: target.NodeNames(given)[0], DryRun: f.dryRun, Deleted: []namedInstance{}}
			err := t.runDrain(cmd.Context(), &r, f)
			return printer.Result(t.Streams.Out, f.output, &r, &r.Outcome, err)
		},
	}
	cmd.Flags().BoolVar(&f.Force, "force", false, "also delete instances that nothing replaces")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the first step, and do nothing")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "timeout, after which the exit code is 5; 0 means no timeout")
	printer.AddOutput(cmd, &f.output)
	cmd.Flags().Int64Var(&f.Grace, "grace-period", -1, "seconds between SIGTERM and SIGKILL; -1 uses the value of the workload")
	return cmd
}

func (t *tool) runDrain(ctx context.Context, r *drainResult, f drainFlags) error {
	node, steps := r.Node, printer.Steps(t.Streams, f.output)
	c, err := t.Client()
	if err != nil {
		return err
	}
	if f.dryRun {
		return t.drainDryRun(ctx, c, r, f)
	}
	if err := setUnschedulable(ctx, c, steps, node, true); err != nil {
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
	d := &drain.Executor{Client: c, Node: node, Options: f.Options, Out: line.Above(steps), Deleted: r.deleted, Waits: line.Set, Baseline: baseline, Kept: maps.Clone(baseline)}
	err = wait.PollUntilContextCancel(ctx, drainPoll, true, d.Step)
	line.End()
	r.Waiting, r.Blocked = d.Last.Waiting, d.Last.Blocked
	if errors.Is(err, context.DeadlineExceeded) {
		seen := "its instances could not be read in that time"
		if len(d.Last.Waiting) > 0 {
			seen = "last seen waiting for " + strings.Join(d.Last.Waiting, "; ")
		}
		return clierror.TimeoutError{What: fmt.Sprintf("node %s to be drained; %s", node, seen)}
	}
	if err != nil {
		return err
	}
	if err := d.Remember(ctx, nil); err != nil {
		return err
	}
	r.Drained = true
	_, _ = fmt.Fprintf(steps, "node/%s drained\n", node)
	return nil
}

func (t *tool) drainDryRun(ctx context.Context, c client.Client, r *drainResult, f drainFlags) error {
	node, steps := r.Node, printer.Steps(t.Streams, f.output)
	n := &rikv1alpha1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: node}, n); err != nil {
		return err
	}
	d := &drain.Executor{Client: c, Node: node, Options: f.Options, Out: steps, Baseline: map[string]int{}}
	s, err := d.State(ctx)
	if err != nil {
		return err
	}
	if !n.Spec.Unschedulable {
		_, _ = fmt.Fprintf(steps, "node/%s would be cordoned\n", node)
	}
	step := drain.Plan(s)
	r.Waiting, r.Blocked = step.Waiting, step.Blocked
	if step.Done {
		_, _ = fmt.Fprintf(steps, "nothing would be deleted: node/%s has no instances to move\n", node)
	}
	for _, i := range step.Evict {
		r.deleted(i)
		_, _ = fmt.Fprintf(steps, "instance/%s in namespace %s would be deleted first\n", i.Name, i.Namespace)
	}
	for _, w := range step.Waiting {
		_, _ = fmt.Fprintf(steps, "the drain would wait for %s\n", w)
	}
	return drain.Blocked(node, step, "--force deletes them too; this dry run changed nothing")
}
