package deletion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	kubedelete "k8s.io/kubectl/pkg/cmd/delete"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/waiting"
	"rik.dev/rik/internal/rikctl/workloadkind"
)

// NewCommand is kubectl's delete, extended by the form of the published design: it deletes an
// app by its name, and reports each node that has removed it.
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	cmd := kubedelete.NewCmdDelete(t.Kube, t.Streams)
	flags := kubedelete.NewDeleteCommandFlags("containing the resource to delete.")
	cmd.ResetFlags()
	flags.AddFlags(cmd)
	cmdutil.AddDryRunFlag(cmd)
	cmd.Flags().Lookup("output").Usage = "name for lines of TYPE/NAME; json or yaml for one document when the command ends"
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(append([]string{"name"}, printer.Outputs...), cobra.ShellCompDirectiveNoFileComp))
	cmd.Run = nil
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if kind, names, ok := workloadkind.Parse(given); ok {
			if err := validateDelete(cmd, names); err != nil {
				return err
			}
			return t.deleteOfKind(cmd, func(ctx context.Context, c client.Client, namespace string) ([]rikv1alpha1.Workload, error) {
				return workloadkind.Find(ctx, c, kind, names, client.InNamespace(namespace))
			})
		}
		if len(given) == 1 && !chosenOtherwise(cmd) && t.noType(given[0]) {
			if err := validateDelete(cmd, given); err != nil {
				return err
			}
			return t.deleteOfKind(cmd, deletable(given[0]))
		}
		if err := validateOutput(cmd); err != nil {
			return err
		}
		t.deleteObjects(cmd, flags, given)
		return nil
	}
	return cmd
}

// deleteObjects is kubectl's delete. It shows which object it waits for.
// Like the rest of kubectl's commands, it panics with the error; see rikctl.Execute.
func (t *tool) deleteObjects(cmd *cobra.Command, flags *kubedelete.DeleteFlags, given []string) {
	o, err := flags.ToOptions(nil, t.Streams)
	cmdutil.CheckErr(err)
	document := documentOf(o.Output)
	if document != "" {
		o.Output = "name" // named reads its lines
	}
	cmdutil.CheckErr(o.Complete(t.Kube, given, cmd))
	cmdutil.CheckErr(o.Validate())
	line := waiting.Begin(cmd.Context(), t.Streams.ErrOut, waiting.Options{After: waiting.After})
	defer line.End()
	if o.DynamicClient != nil {
		o.DynamicClient = waiting.Observe(o.DynamicClient, func(object client.Object) {
			line.Set(waiting.Deletion(strings.ToLower(object.GetObjectKind().GroupVersionKind().Kind), object))
		})
	}
	if document == "" {
		o.Out = line.Above(o.Out)
		cmdutil.CheckErr(o.RunDelete(t.Kube))
		return
	}
	var deleted bytes.Buffer
	o.Out = &deleted
	err = o.RunDelete(t.Kube)
	line.End()
	result := deleteResult{Deleted: named(deleted.String())}
	cmdutil.CheckErr(printer.Result(t.Streams.Out, document, &result, &result.Outcome, err))
}

// deleteResult is the result of a deletion for scripts.
type deleteResult struct {
	Deleted []deletedObject `json:"deleted"`

	printer.Outcome `json:",inline"`
}

// deletedObject is an object that was deleted, or whose deletion has begun.
type deletedObject struct {
	// Resource has its group, such as "workload.rik.dev".
	Resource string `json:"resource"`
	Name     string `json:"name"`
	// Nodes are those that have confirmed that they removed the instances of an app or function.
	Nodes []string `json:"nodes,omitempty"`
}

// documentOf returns the value of -o if it asks for one document.
func documentOf(output string) string {
	if slices.Contains(printer.Outputs, output) {
		return output
	}
	return ""
}

// named reads kubectl's lines of RESOURCE/NAME.
func named(lines string) []deletedObject {
	objects := []deletedObject{}
	for line := range strings.Lines(lines) {
		resource, name, _ := strings.Cut(strings.TrimSpace(line), "/")
		objects = append(objects, deletedObject{Resource: resource, Name: name})
	}
	return objects
}

// chosenOtherwise reports whether flags select what to delete.
func chosenOtherwise(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{"filename", "kustomize", "selector", "field-selector", "all", "raw"}, cmd.Flags().Changed)
}

// validateDelete refuses flags that have no effect on apps and functions.
func validateDelete(cmd *cobra.Command, names []string) error {
	if len(names) == 0 {
		return cmdline.Errorf(cmd, "a name is required, such as: %s delete app helloworld", cmdline.Program)
	}
	for _, other := range []string{"all", "all-namespaces", "selector", "field-selector", "filename", "kustomize", "raw", "force", "grace-period", "dry-run", "cascade", "interactive"} {
		if cmd.Flags().Changed(other) {
			return cmdline.Errorf(cmd, "--%s is not available for apps and functions; use \"%s delete workload\"", other, cmdline.Program)
		}
	}
	if output := cmd.Flags().Lookup("output").Value.String(); output != "" && documentOf(output) == "" {
		return cmdline.Errorf(cmd, "--output %q is not available for apps and functions; use json or yaml", output)
	}
	return nil
}

// validateOutput refuses other values of -o than those of this command, for objects of any type.
func validateOutput(cmd *cobra.Command) error {
	output := cmd.Flags().Lookup("output").Value.String()
	asks, _ := cmd.Flags().GetBool("interactive")
	switch {
	case documentOf(output) != "" && asks:
		return cmdline.Errorf(cmd, "--output %s cannot be used with --interactive, which asks on the standard output", output)
	case output != "" && output != "name" && documentOf(output) == "":
		return cmdline.Errorf(cmd, "--output %q is not supported; use name, json or yaml", output)
	}
	return nil
}

// noType reports whether a word is certainly not the name of a type.
func (t *tool) noType(word string) bool {
	if strings.ContainsAny(word, "/,.") {
		return false
	}
	mapper, err := t.Getter.ToRESTMapper()
	if err != nil {
		return false // kubectl's code reports the cause
	}
	_, err = mapper.ResourceFor(schema.GroupVersionResource{Resource: strings.ToLower(word)})
	return meta.IsNoMatchError(err)
}

// deleteOfKind implements "delete app NAME" and, for the published design, "delete NAME".
func (t *tool) deleteOfKind(cmd *cobra.Command, find func(context.Context, client.Client, string) ([]rikv1alpha1.Workload, error)) error {
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return err
	}
	waits, _ := cmd.Flags().GetBool("wait")
	timeout, _ := cmd.Flags().GetDuration("timeout")
	output := cmd.Flags().Lookup("output").Value.String()
	result := deleteResult{Deleted: []deletedObject{}}
	found, problem := find(cmd.Context(), c, namespace)
	problems := []error{problem}
	for i := range found {
		nodes, err := t.destroy(cmd.Context(), c, &found[i], waits, timeout)
		problems = append(problems, err)
		if err == nil {
			result.Deleted = append(result.Deleted, deletedObject{Resource: "workload." + rikv1alpha1.GroupName, Name: found[i].Name, Nodes: nodes})
			printDeleted(printer.Steps(t.Streams, output), found[i].Name, nodes, waits)
		}
	}
	return printer.Result(t.Streams.Out, output, &result, &result.Outcome, errors.Join(problems...))
}

// printDeleted prints the end of a deletion.
func printDeleted(out io.Writer, name string, nodes []string, waited bool) {
	switch {
	case !waited:
		_, _ = fmt.Fprintf(out, "%s is being deleted\n", name)
	case len(nodes) == 0:
		_, _ = fmt.Fprintf(out, "%s deleted\n", name)
	}
	for _, n := range nodes {
		_, _ = fmt.Fprintf(out, "%s deleted on %s\n", name, n)
	}
}

// destroy deletes a workload. If it waits, it returns the nodes that have confirmed the deletion.
func (t *tool) destroy(ctx context.Context, c client.Client, w *rikv1alpha1.Workload, waits bool, timeout time.Duration) (nodes []string, err error) {
	instances, err := target.InstancesOf(ctx, c, w)
	if err != nil {
		return nil, err
	}
	uid := w.UID
	if err := c.Delete(ctx, w, client.Preconditions{UID: &uid}); err != nil {
		return nil, fmt.Errorf("deleting %s: %w", w.Name, err)
	}
	if !waits {
		return nil, nil
	}
	line := waiting.Begin(ctx, t.Streams.ErrOut, waiting.Options{After: waiting.After})
	err = awaitEnd(ctx, c, w, timeout, line.Set)
	line.End()
	if err != nil {
		return nil, err
	}
	return target.NodesOf(instances), nil
}

// awaitEnd waits until the workload and all its instances are gone.
func awaitEnd(ctx context.Context, c client.Client, w *rikv1alpha1.Workload, timeout time.Duration, waits func(waiting.State)) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, clierror.TimeoutError{What: "the deletion of " + w.Name + "; its nodes have not confirmed that they removed its instances"})
		defer cancel()
	}
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now := &rikv1alpha1.Workload{}
		err := c.Get(ctx, client.ObjectKeyFromObject(w), now)
		if err == nil && now.UID == w.UID {
			waits(waiting.Deletion("workload", now))
			return false, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return false, err
		}
		left, err := target.InstancesOf(ctx, c, w)
		if at := slices.IndexFunc(left, func(i rikv1alpha1.Instance) bool { return ownedBy(&i, w) }); at >= 0 {
			waits(waiting.Deletion("instance", &left[at]))
			return false, err
		}
		return true, err
	})
	var late clierror.TimeoutError
	if err != nil && errors.As(context.Cause(ctx), &late) {
		return late
	}
	return err
}

func ownedBy(i *rikv1alpha1.Instance, w *rikv1alpha1.Workload) bool {
	return slices.ContainsFunc(i.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == w.UID })
}

// deletable returns the function that finds the workload of "delete NAME": a Function, or an
// App if no Function has that name. Other workloads need their type in front of the name.
func deletable(name string) func(context.Context, client.Client, string) ([]rikv1alpha1.Workload, error) {
	return func(ctx context.Context, c client.Client, namespace string) ([]rikv1alpha1.Workload, error) {
		var missing error
		for _, kind := range []rikv1alpha1.WorkloadKind{rikv1alpha1.KindFunction, rikv1alpha1.KindApp} {
			found, err := workloadkind.Find(ctx, c, kind, []string{name}, client.InNamespace(namespace))
			if err == nil {
				return found, nil
			}
			if !apierrors.IsNotFound(err) {
				return nil, err
			}
			missing = err
		}
		return nil, missing
	}
}
