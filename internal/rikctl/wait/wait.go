package wait

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/dynamic"
	"k8s.io/kubectl/pkg/cmd/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/trouble"
	"rik.dev/rik/internal/rikctl/waiting"
)

// NewCommand is kubectl's wait with a short form for waiting for a phase.
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	flags := wait.NewWaitFlags(t.Getter, t.Streams)
	cmd := wait.NewCmdWait(t.Getter, t.Streams)
	cmd.ResetFlags()
	flags.AddFlags(cmd)
	cmd.Run = nil
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		o, err := flags.ToOptions(given)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(flags.ForCondition, func(c string) bool { return strings.EqualFold(c, "delete") }) {
			for n, condition := range o.ConditionFn {
				o.ConditionFn[n] = untilDeleted(condition)
			}
		}
		line := waiting.Begin(cmd.Context(), t.Streams.ErrOut, waiting.Options{After: waiting.After})
		defer line.End()
		o.DynamicClient = waiting.Observe(o.DynamicClient, func(object client.Object) {
			line.Set(waitState(object, flags.ForCondition))
		})
		if o.Printer != nil {
			o.Printer = above{o.Printer, line}
		}
		return o.RunWaitContext(cmd.Context())
	}
	cmd.PreRunE = func(cmd *cobra.Command, given []string) error {
		conditions, ok := cmd.Flags().Lookup("for").Value.(pflag.SliceValue)
		if !ok {
			return nil
		}
		if err := validateConditions(cmd, conditions.GetSlice(), given); err != nil {
			return err
		}
		return conditions.Replace(longConditions(conditions.GetSlice()))
	}
	return cmd
}

// above prints above the line.
type above struct {
	printers.ResourcePrinter
	line *waiting.Line
}

// PrintObj implements printers.ResourcePrinter.
func (a above) PrintObj(o runtime.Object, out io.Writer) error {
	return a.ResourcePrinter.PrintObj(o, a.line.Above(out))
}

// waitState returns what a wait for an object waits for.
func waitState(o client.Object, conditions []string) waiting.State {
	s := waiting.State{For: fmt.Sprintf("%s %s: %s", strings.ToLower(o.GetObjectKind().GroupVersionKind().Kind), o.GetName(), strings.Join(conditions, ", "))}
	if u, ok := o.(*unstructured.Unstructured); ok {
		if state := stateOf(u); state != "" {
			s.For += " (now: " + state + ")"
		}
	}
	return s
}

const waitForms = "delete, create, condition=Ready, phase=Running or jsonpath='{.status.readyReplicas}'=3"

// validateConditions refuses invalid conditions, and conditions that can never become true.
func validateConditions(cmd *cobra.Command, conditions, given []string) error {
	if len(conditions) == 0 {
		return cmdline.Errorf(cmd, "--for is required: %s", waitForms)
	}
	for _, c := range conditions {
		kind, value, valued := strings.Cut(c, "=")
		switch kind = strings.ToLower(kind); {
		case (kind == "delete" || kind == "create") && !valued:
		case (kind == "condition" || kind == "jsonpath" || kind == "phase") && value != "":
			if kind == "phase" && ofInstances(given) && !slices.Contains(phases, rikv1alpha1.InstancePhase(value)) {
				return cmdline.Errorf(cmd, "instances have no phase %q; use one of %v", value, phases)
			}
		default:
			return cmdline.Errorf(cmd, "--for=%s is not supported; use %s", c, waitForms)
		}
	}
	return nil
}

// phases lists the phases that an instance can have.
var phases = []rikv1alpha1.InstancePhase{
	rikv1alpha1.InstancePending, rikv1alpha1.InstanceCreating, rikv1alpha1.InstanceRunning, rikv1alpha1.InstanceCompleted,
	rikv1alpha1.InstanceFailed, rikv1alpha1.InstanceUnknown,
}

// ofInstances reports whether the arguments of wait name instances.
func ofInstances(given []string) bool {
	if len(given) == 0 {
		return false
	}
	kind, _, _ := strings.Cut(given[0], "/")
	kind, _, _ = strings.Cut(kind, ".")
	return slices.Contains(target.InstanceWords, kind)
}

// longConditions expands the short forms of conditions.
func longConditions(conditions []string) []string {
	out := slices.Clone(conditions)
	for i, c := range out {
		if phase, ok := strings.CutPrefix(c, "phase="); ok {
			out[i] = "jsonpath={.status.phase}=" + phase
		}
	}
	return out
}

// untilDeleted ends a wait when the object is deleted, and adds the object's state to a timeout.
// kubectl's own wait would continue with a new object of the same name.
func untilDeleted(condition wait.ConditionFunc) wait.ConditionFunc {
	return func(ctx context.Context, info *resource.Info, o *wait.WaitOptions) (runtime.Object, bool, error) {
		waiting, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		objects := o.DynamicClient.Resource(info.Mapping.Resource).Namespace(info.Namespace)
		uid := uidOf(info.Object)
		var group sync.WaitGroup
		group.Go(func() {
			for pause.For(waiting, deletedInterval) {
				now, err := objects.Get(waiting, info.Name, metav1.GetOptions{})
				switch {
				case apierrors.IsNotFound(err):
				case err == nil && uid != "" && now.GetUID() != uid:
				default:
					continue
				}
				cancel(clierror.NotFound(fmt.Errorf("%s/%s was deleted during the wait", info.Mapping.Resource.Resource, info.Name)))
				return
			}
		})
		object, done, err := condition(waiting, info, o)
		deleted := context.Cause(waiting)
		cancel(nil)
		group.Wait()
		var absent clierror.AbsentError
		switch {
		case done || err == nil:
			return object, done, err
		case errors.As(deleted, &absent):
			return object, false, absent
		case errors.Is(ctx.Err(), context.Canceled):
			return object, false, err
		}
		return object, false, withState(ctx, err, objects, info)
	}
}

// deletedInterval is the interval of checks whether the object still exists.
const deletedInterval = time.Second

func uidOf(object runtime.Object) types.UID {
	o, err := meta.Accessor(object)
	if err != nil {
		return ""
	}
	return o.GetUID()
}

// withState adds the object's state to a timeout error.
func withState(ctx context.Context, err error, objects dynamic.ResourceInterface, info *resource.Info) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateWithin)
	defer cancel()
	now, failed := objects.Get(ctx, info.Name, metav1.GetOptions{})
	if failed != nil || apierrors.IsNotFound(err) {
		return err
	}
	what := strings.TrimPrefix(err.Error(), "timed out waiting for ")
	if state := stateOf(now); state != "" {
		what += "; its state: " + printers.EscapeTerminal(state)
	}
	if what == err.Error() {
		return err
	}
	if !strings.HasPrefix(err.Error(), "timed out") {
		return errors.New(what) // with --timeout=0
	}
	return clierror.TimeoutError{What: what}
}

// stateWithin is the timeout for reading that state.
const stateWithin = 5 * time.Second

// stateOf summarizes the state of any object: its phase, reason and conditions.
func stateOf(o *unstructured.Unstructured) string {
	var words []string
	for _, field := range []string{"phase", "reason", "message"} {
		if text, _, _ := unstructured.NestedString(o.Object, "status", field); text != "" {
			words = append(words, field+" "+text)
		}
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		fields, ok := c.(map[string]any)
		if !ok {
			continue
		}
		text := fmt.Sprintf("%v=%v", fields["type"], fields["status"])
		if reason, _ := fields["reason"].(string); reason != "" && fields["status"] != "True" {
			message, _ := fields["message"].(string)
			text += " (" + trouble.Reasoned(reason, message) + ")"
		}
		words = append(words, text)
	}
	return strings.Join(words, ", ")
}
