// Package target finds the workloads, instances and nodes that a command line names, and completes
// their names.
package target

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/kubectl/pkg/util/completion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// Target is an instance, or all instances of a workload.
type Target struct {
	Workload bool
	Name     string
}

var (
	// InstanceWords are the words for the type of an instance on the command line.
	InstanceWords = []string{"instance", "instances", "inst", "ins"}
	workloadWords = []string{"workload", "workloads", "wl", "app", "apps", "function", "functions", "fn"}
)

// Parse parses NAME, instance/NAME or workload/NAME.
func Parse(arg string) (Target, error) {
	kind, rest, typed := strings.Cut(arg, "/")
	if !typed {
		return Target{Name: arg}, nil
	}
	kind, _, _ = strings.Cut(kind, ".") // instances.rik.dev and similar
	switch {
	case rest == "":
		return Target{}, fmt.Errorf("%q has no name; write instance/NAME or workload/NAME", arg)
	case slices.Contains(InstanceWords, kind):
		return Target{Name: rest}, nil
	case slices.Contains(workloadWords, kind):
		return Target{Workload: true, Name: rest}, nil
	}
	return Target{}, fmt.Errorf("%q is neither an instance nor a workload: write instance/NAME or workload/NAME", arg)
}

// WorkloadName parses a workload's name as NAME, workload/NAME or the two words workload NAME.
func WorkloadName(cmd *cobra.Command, given []string) (string, error) {
	joined := strings.Join(given, "/")
	if len(given) == 1 && !strings.Contains(joined, "/") {
		return joined, nil
	}
	tg, err := Parse(joined)
	if err != nil || !tg.Workload || strings.Contains(tg.Name, "/") {
		return "", cmdline.Errorf(cmd, "%q is not a workload: write workload/NAME", strings.Join(given, " "))
	}
	return tg.Name, nil
}

// Instances returns the instances of a target, sorted by name.
func (tg Target) Instances(ctx context.Context, c client.Client, namespace string) ([]rikv1alpha1.Instance, error) {
	if !tg.Workload {
		i := rikv1alpha1.Instance{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: tg.Name}, &i); err != nil {
			return nil, err
		}
		return []rikv1alpha1.Instance{i}, nil
	}
	w := &rikv1alpha1.Workload{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: tg.Name}, w); err != nil {
		return nil, err
	}
	all, err := InstancesOf(ctx, c, w)
	if err == nil && len(all) == 0 {
		err = clierror.WithNext(fmt.Errorf("workload %s has no instances", tg.Name),
			fmt.Sprintf("\"rikctl create instance -w %s\" starts one", tg.Name))
	}
	return all, err
}

// InstancesOf returns the instances of a workload, sorted by name.
func InstancesOf(ctx context.Context, c client.Client, w *rikv1alpha1.Workload) ([]rikv1alpha1.Instance, error) {
	list := &rikv1alpha1.InstanceList{}
	if err := c.List(ctx, list, client.InNamespace(w.Namespace), client.MatchingFields{"spec.workload": w.Name}); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// CompleteInstance completes the name of one instance, or of a workload after "workload/".
func CompleteInstance(f *access.Factory) cobra.CompletionFunc {
	complete := CompleteInstances(f)
	return func(cmd *cobra.Command, given []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(given) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, given, typed)
	}
}

// CompleteInstances does the same for commands that take several instances.
func CompleteInstances(f *access.Factory) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		if kind, rest, ok := strings.Cut(typed, "/"); ok {
			var names []string
			for _, n := range completion.CompGetResource(f.Kube, kind, rest) {
				names = append(names, kind+"/"+n)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		}
		return completion.CompGetResource(f.Kube, "instances.rik.dev", typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteNodes completes the names of nodes.
func CompleteNodes(f *access.Factory) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return completion.CompGetResource(f.Kube, "nodes.rik.dev", typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// NodeNames removes an optional node/ from the names.
func NodeNames(given []string) []string {
	names := slices.Clone(given)
	for i := range names {
		for _, word := range []string{"node/", "nodes/", "no/"} {
			names[i] = strings.TrimPrefix(names[i], word)
		}
	}
	return names
}

// NodesOf returns the names of the nodes of instances, sorted.
func NodesOf(instances []rikv1alpha1.Instance) []string {
	var nodes []string
	for i := range instances {
		if n := instances[i].Spec.NodeName; n != "" {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// FirstRunning picks the instance to run a command in. It prefers a Running instance. Otherwise
// it takes one whose container already runs while the instance is still Creating or waits for
// another container.
func FirstRunning(instances []rikv1alpha1.Instance, container string) (*rikv1alpha1.Instance, error) {
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
	return nil, clierror.WithNext(fmt.Errorf("instance %s is %s, not Running", i.Name, PhaseOf(i)),
		fmt.Sprintf("\"rikctl describe instance %s\" shows why", i.Name))
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
			return clierror.WithNext(fmt.Errorf("container %s of instance %s is %s (%s)", name, i.Name, c.State, cmp.Or(c.Reason, string(PhaseOf(i)))),
				fmt.Sprintf("\"rikctl describe instance %s\" shows why", i.Name))
		}
		names = append(names, c.Name)
	}
	return clierror.InvalidError{Source: "instance " + i.Name, Err: fmt.Errorf("container %q not found; it has: %s", name, strings.Join(names, ", "))}
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

// PhaseOf returns the phase of an instance, which is Pending before its first status.
func PhaseOf(i *rikv1alpha1.Instance) rikv1alpha1.InstancePhase {
	if i.Status.Phase == "" {
		return rikv1alpha1.InstancePending
	}
	return i.Status.Phase
}

// Serving picks the instance for a connection. For a workload it prefers a ready instance to one
// that only runs.
func (tg Target) Serving(ctx context.Context, c client.Client, namespace string) (*rikv1alpha1.Instance, error) {
	instances, err := tg.Instances(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	for i := range instances {
		if in := &instances[i]; in.Status.Ready && in.DeletionTimestamp == nil && in.Status.Phase == rikv1alpha1.InstanceRunning {
			return in, nil
		}
	}
	return FirstRunning(instances, "")
}

// Final reports whether every later connection would fail too. For a workload, a missing
// instance is not final, because another one replaces it.
func (tg Target) Final(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) && !tg.Workload
}
