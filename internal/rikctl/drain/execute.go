package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/waiting"
)

// Options says how a drain evicts instances.
type Options struct {
	// Force evicts instances that get no replacement, and takes the turn of another drain.
	Force bool
	// Grace is the grace period in seconds; negative for the one of the workload.
	Grace int64
}

// Executor executes the plan of the drain of one node. One goroutine uses it.
type Executor struct {
	Client  client.Client
	Node    string
	Options Options
	// Out gets a line for each deletion.
	Out io.Writer
	// Deleted is called for each instance that was deleted. It may be nil.
	Deleted func(*rikv1alpha1.Instance)
	// Waits is called at each step with what the drain waits for. It may be nil.
	Waits func(waiting.State)
	// Baseline is the State's Baseline, and Kept the one that the Node's annotation has.
	Baseline, Kept map[string]int
	// Last is the last step.
	Last Step
	// moving has the instances that were on the node, by UID.
	moving map[types.UID]bool
}

// Step reads the state, plans and acts once. It returns true when the drain is done.
func (d *Executor) Step(ctx context.Context) (bool, error) {
	s, err := d.State(ctx)
	if err != nil {
		return false, err
	}
	step := Plan(s)
	d.Last = step
	if err := Blocked(d.Node, step, "--force deletes them too; the node stays cordoned until \"rikctl uncordon "+d.Node+"\""); err != nil {
		return false, err
	}
	if err := d.Remember(ctx, d.Baseline); err != nil {
		return false, err
	}
	if err := d.EvictAll(ctx, s, &step); err != nil {
		return false, err
	}
	d.Last = step
	if d.Waits != nil {
		if d.moving == nil {
			d.moving = map[types.UID]bool{}
		}
		d.Waits(progress(s, step, d.moving))
	}
	return step.Done, nil
}

// progress returns how far a drain is. It adds the instances on the node to moving.
func progress(s State, step Step, moving map[types.UID]bool) waiting.State {
	here := map[types.UID]bool{}
	var oldest *rikv1alpha1.Instance // the one whose end the drain has waited for the longest
	for n := range s.Instances {
		i := &s.Instances[n]
		if i.Spec.NodeName != s.Node || i.Status.Phase.Ended() {
			continue
		}
		here[i.UID], moving[i.UID] = true, true
		if i.DeletionTimestamp != nil && (oldest == nil || i.DeletionTimestamp.Before(oldest.DeletionTimestamp)) {
			oldest = i
		}
	}
	state := waiting.State{For: strings.Join(step.Waiting, "; ")}
	if len(moving) > 0 {
		state.Done, state.Total, state.What = len(moving)-len(here), len(moving), "instances moved"
	}
	if oldest != nil {
		state.For = fmt.Sprintf("instance %s/%s: Terminating", oldest.Namespace, oldest.Name)
		if rest := slices.DeleteFunc(slices.Clone(step.Waiting), func(w string) bool { return strings.HasSuffix(w, " to end") }); len(rest) > 0 {
			state.For += "; " + strings.Join(rest, "; ")
		}
	}
	return state
}

// EvictAll deletes the instances that may go, while it holds the turn of their workload.
func (d *Executor) EvictAll(ctx context.Context, s State, step *Step) error {
	byWorkload := map[string][]*rikv1alpha1.Instance{}
	for _, i := range step.Evict {
		byWorkload[KeyOf(i)] = append(byWorkload[KeyOf(i)], i)
	}
	for _, key := range slices.Sorted(maps.Keys(byWorkload)) {
		w := s.Workloads[key]
		if w == nil || w.Spec.Deploy != rikv1alpha1.DeployAutomatic {
			if err := d.evict(ctx, byWorkload[key]); err != nil {
				return err
			}
			continue
		}
		mine, waiting, err := d.Turn(ctx, w)
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

func (d *Executor) evict(ctx context.Context, instances []*rikv1alpha1.Instance) error {
	for _, i := range instances {
		if err := d.evictOne(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (d *Executor) evictOne(ctx context.Context, i *rikv1alpha1.Instance) error {
	options := []client.DeleteOption{client.Preconditions{UID: &i.UID}}
	if d.Options.Grace >= 0 {
		options = append(options, client.GracePeriodSeconds(d.Options.Grace))
	}
	err := d.Client.Delete(ctx, i, options...)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting instance %s: %w", i.Name, err)
	}
	if d.Deleted != nil {
		d.Deleted(i)
	}
	_, _ = fmt.Fprintf(d.Out, "instance/%s in namespace %s deleted\n", i.Name, i.Namespace)
	return nil
}

// Blocked returns the error of a step with instances that must never be evicted, or nil.
func Blocked(node string, step Step, next string) error {
	if len(step.Blocked) == 0 {
		return nil
	}
	return clierror.WithNext(fmt.Errorf("draining node %s: these instances must not be deleted:\n  %s", node, strings.Join(step.Blocked, "\n  ")), next)
}

// State reads the node's instances, their workloads and the other instances of those workloads.
// A workload stays in the state after its last instance has left the node.
func (d *Executor) State(ctx context.Context) (State, error) {
	s := State{Node: d.Node, Workloads: map[string]*rikv1alpha1.Workload{}, Baseline: d.Baseline, Force: d.Options.Force}
	here := &rikv1alpha1.InstanceList{}
	if err := d.Client.List(ctx, here, client.MatchingFields{"spec.nodeName": d.Node}); err != nil {
		return s, err
	}
	keys := map[string]client.ObjectKey{}
	for i := range here.Items {
		o := &here.Items[i]
		if !o.Status.Phase.Ended() {
			keys[KeyOf(o)] = client.ObjectKey{Namespace: o.Namespace, Name: o.Spec.Workload}
		}
	}
	for key := range d.Baseline {
		namespace, workload, _ := strings.Cut(key, "/")
		keys[key] = client.ObjectKey{Namespace: namespace, Name: workload}
	}
	for key, object := range keys {
		if err := d.workload(ctx, &s, key, object); err != nil {
			return s, err
		}
	}
	for i := range here.Items {
		if s.Workloads[KeyOf(&here.Items[i])] == nil {
			s.Instances = append(s.Instances, here.Items[i])
		}
	}
	return s, nil
}

func (d *Executor) workload(ctx context.Context, s *State, key string, object client.ObjectKey) error {
	w := &rikv1alpha1.Workload{}
	err := d.Client.Get(ctx, object, w)
	if apierrors.IsNotFound(err) {
		delete(d.Baseline, key)
		return nil
	}
	if err != nil {
		return err
	}
	all, err := target.InstancesOf(ctx, d.Client, w)
	if err != nil {
		return err
	}
	s.Workloads[key] = w
	s.Instances = append(s.Instances, all...)
	if _, known := d.Baseline[key]; !known && w.Spec.Deploy == rikv1alpha1.DeployAutomatic {
		d.Baseline[key] = Ready(all, key)
	}
	return nil
}
