package rikctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/drain"
	"rik.dev/rik/internal/rikctl/target"
)

// drainPoll is the interval between two steps of a drain.
const drainPoll = time.Second

// drainFlags are the flags of drain.
type drainFlags struct {
	drainOptions
	dryRun  bool
	timeout time.Duration
}

// drainOptions says how a drain evicts instances.
type drainOptions struct {
	// force evicts instances that get no replacement, and takes the turn of another drain.
	force bool
	// grace is the grace period in seconds; negative for the one of the workload.
	grace int64
}

func (t *tool) drainCommand() *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move the instances of a node elsewhere",
		Long: `Cordon a node and move its instances elsewhere: they are deleted as fast as
spec.disruption.maxUnavailable of their workloads allows (1 by default), and the
controller starts others on other nodes. Waits until the replacements are ready.
A drain that was interrupted, or ran out of time, goes on where it was when it is
run again. Drains of several nodes at once take turns with a workload.

Instances of a workload with deploy: Manual are replaced by nobody: they stop the
drain before anything is deleted, unless --force is given.`,
		Args:              cmdline.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: target.CompleteNodes(t.Factory),
		RunE: func(cmd *cobra.Command, given []string) error {
			if f.timeout < 0 {
				return cmdline.Errorf(cmd, "--timeout must not be negative; 0 waits for ever")
			}
			return t.runDrain(cmd.Context(), target.NodeNames(given)[0], f)
		},
	}
	cmd.Flags().BoolVar(&f.force, "force", false, "also delete instances that nothing replaces")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be done first, and do nothing")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "give up after this time, with code 5; 0 for never")
	cmd.Flags().Int64Var(&f.grace, "grace-period", -1, "seconds between the polite and the hard signal; -1 for the workload's own")
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
	baseline, err := resume(ctx, c, node)
	if err != nil {
		return err
	}
	d := &drainer{c: c, node: node, flags: f.drainOptions, out: t.Streams.Out, errOut: t.Streams.ErrOut, baseline: baseline, kept: maps.Clone(baseline)}
	err = wait.PollUntilContextCancel(ctx, drainPoll, true, d.step)
	if errors.Is(err, context.DeadlineExceeded) {
		seen := "nothing was seen of its instances in that time"
		if d.said != "" {
			seen = "last seen waiting for " + d.said
		}
		return clierror.TimeoutError{What: fmt.Sprintf("node %s to be drained; %s", node, seen)}
	}
	if err != nil {
		return err
	}
	if err := d.remember(ctx, nil); err != nil {
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
	d := &drainer{c: c, node: node, flags: f.drainOptions, out: t.Streams.Out, errOut: t.Streams.ErrOut, baseline: map[string]int{}}
	s, err := d.state(ctx)
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
	return blocked(node, step, "--force deletes them too; this was a dry run, the node is as it was")
}

// drainer executes the plan of a drain.
type drainer struct {
	c        client.Client
	node     string
	flags    drainOptions
	out      io.Writer
	errOut   io.Writer
	baseline map[string]int
	kept     map[string]int // the baseline that the Node's annotation has
	said     string
}

// step reads the state, plans and acts once.
func (d *drainer) step(ctx context.Context) (bool, error) {
	s, err := d.state(ctx)
	if err != nil {
		return false, err
	}
	step := drain.Plan(s)
	if err := blocked(d.node, step, "--force deletes them too; the node stays cordoned until \"rikctl uncordon "+d.node+"\""); err != nil {
		return false, err
	}
	if err := d.remember(ctx, d.baseline); err != nil {
		return false, err
	}
	if err := d.evictAll(ctx, s, &step); err != nil {
		return false, err
	}
	if said := strings.Join(step.Waiting, "; "); said != d.said {
		d.said = said
		if said != "" {
			_, _ = fmt.Fprintf(d.errOut, "waiting for %s\n", said)
		}
	}
	return step.Done, nil
}

// evictAll deletes the instances that may go, while it holds the turn of their workload.
func (d *drainer) evictAll(ctx context.Context, s drain.State, step *drain.Step) error {
	byWorkload := map[string][]*rikv1alpha1.Instance{}
	for _, i := range step.Evict {
		byWorkload[drain.KeyOf(i)] = append(byWorkload[drain.KeyOf(i)], i)
	}
	for _, key := range slices.Sorted(maps.Keys(byWorkload)) {
		w := s.Workloads[key]
		if w == nil || w.Spec.Deploy != rikv1alpha1.DeployAutomatic {
			if err := d.evict(ctx, byWorkload[key]); err != nil {
				return err
			}
			continue
		}
		mine, waiting, err := d.turn(ctx, w)
		if err != nil {
			return err
		}
		if waiting != "" {
			step.Waiting = append(step.Waiting, waiting)
		}
		if !mine {
			continue
		}
		// Pass the turn on even if the drain has been interrupted.
		if err := errors.Join(d.evict(ctx, byWorkload[key]), d.pass(context.WithoutCancel(ctx), w)); err != nil {
			return err
		}
	}
	return nil
}

func (d *drainer) evict(ctx context.Context, instances []*rikv1alpha1.Instance) error {
	for _, i := range instances {
		if err := d.evictOne(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (d *drainer) evictOne(ctx context.Context, i *rikv1alpha1.Instance) error {
	options := []client.DeleteOption{client.Preconditions{UID: &i.UID}}
	if d.flags.grace >= 0 {
		options = append(options, client.GracePeriodSeconds(d.flags.grace))
	}
	err := d.c.Delete(ctx, i, options...)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting instance %s: %w", i.Name, err)
	}
	_, _ = fmt.Fprintf(d.out, "instance/%s in namespace %s deleted\n", i.Name, i.Namespace)
	return nil
}

func blocked(node string, step drain.Step, next string) error {
	if len(step.Blocked) == 0 {
		return nil
	}
	return clierror.WithNext(fmt.Errorf("draining node %s: it has instances that may not go:\n  %s", node, strings.Join(step.Blocked, "\n  ")), next)
}

// state reads the node's instances, their workloads and the other instances of those workloads.
// A workload stays in the state after its last instance has left the node.
func (d *drainer) state(ctx context.Context) (drain.State, error) {
	s := drain.State{Node: d.node, Workloads: map[string]*rikv1alpha1.Workload{}, Baseline: d.baseline, Force: d.flags.force}
	here := &rikv1alpha1.InstanceList{}
	if err := d.c.List(ctx, here, client.MatchingFields{"spec.nodeName": d.node}); err != nil {
		return s, err
	}
	keys := map[string]client.ObjectKey{}
	for i := range here.Items {
		o := &here.Items[i]
		if !o.Status.Phase.Ended() {
			keys[drain.KeyOf(o)] = client.ObjectKey{Namespace: o.Namespace, Name: o.Spec.Workload}
		}
	}
	for key := range d.baseline {
		namespace, workload, _ := strings.Cut(key, "/")
		keys[key] = client.ObjectKey{Namespace: namespace, Name: workload}
	}
	for key, object := range keys {
		if err := d.workload(ctx, &s, key, object); err != nil {
			return s, err
		}
	}
	for i := range here.Items {
		if s.Workloads[drain.KeyOf(&here.Items[i])] == nil {
			s.Instances = append(s.Instances, here.Items[i])
		}
	}
	return s, nil
}

func (d *drainer) workload(ctx context.Context, s *drain.State, key string, object client.ObjectKey) error {
	w := &rikv1alpha1.Workload{}
	err := d.c.Get(ctx, object, w)
	if apierrors.IsNotFound(err) {
		delete(d.baseline, key)
		return nil
	}
	if err != nil {
		return err
	}
	all, err := target.InstancesOf(ctx, d.c, w)
	if err != nil {
		return err
	}
	s.Workloads[key] = w
	s.Instances = append(s.Instances, all...)
	if _, known := d.baseline[key]; !known && w.Spec.Deploy == rikv1alpha1.DeployAutomatic {
		d.baseline[key] = drain.Ready(all, key)
	}
	return nil
}
