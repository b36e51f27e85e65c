package scale

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	kubescale "k8s.io/kubectl/pkg/cmd/scale"
	"k8s.io/kubectl/pkg/util/completion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/waiting"
)

// NewCommand is kubectl's scale, which uses the scale subresource. It adds a remark for
// workloads that ignore their number of replicas.
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	cmd := kubescale.NewCmdScale(t.Kube, t.Streams)
	cmd.Short = "Set how many instances an Automatic workload keeps"
	cmd.Long = "Set how many instances a workload with deploy: Automatic keeps."
	cmd.Example = cmdline.Example("rikctl scale workload web --replicas=5")
	cmd.ValidArgsFunction = completion.SpecifiedResourceTypeAndNameCompletionFunc(t.Kube, []string{"workload"})
	cmd.PreRunE = func(cmd *cobra.Command, given []string) error {
		// kubectl ignores a negative number, and truncates a large one.
		if replicas, err := cmd.Flags().GetInt("replicas"); err == nil && (replicas < 0 || replicas > math.MaxInt32) {
			return cmdline.Errorf(cmd, "--replicas must be a number from 0 to %d", math.MaxInt32)
		}
		if len(given) == 0 && cmd.Flags().Lookup("filename").Value.String() == "[]" {
			return cmdline.Errorf(cmd, "a workload is required, such as: rikctl scale workload web --replicas=3")
		}
		return nil
	}
	kubectls := cmd.Run
	cmd.Run = func(cmd *cobra.Command, given []string) {
		stop := t.showInstances(cmd, given)
		defer stop()
		kubectls(cmd, given)
	}
	cmd.PostRun = func(cmd *cobra.Command, given []string) { t.noteManual(cmd, given) }
	return cmd
}

// countsRead is the interval of looks at the instances of a workload that is scaled.
const countsRead = time.Second

// showInstances shows how many instances a workload has while --timeout waits. The caller must
// call stop.
func (t *tool) showInstances(cmd *cobra.Command, given []string) (stop func()) {
	timeout, _ := cmd.Flags().GetDuration("timeout")
	if timeout == 0 || len(given) == 0 {
		return func() {}
	}
	replicas, _ := cmd.Flags().GetInt("replicas")
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return func() {} // kubectl's code reports it
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	line := waiting.Begin(ctx, t.Streams.ErrOut, waiting.Options{After: waiting.After})
	var group sync.WaitGroup
	group.Go(func() {
		for pause.For(ctx, countsRead) {
			for _, name := range scaled(given) {
				w := &rikv1alpha1.Workload{}
				if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, w); err == nil && int(w.Status.Replicas) != replicas {
					line.Set(waiting.State{Done: int(w.Status.Replicas), Total: replicas, What: "instances exist", For: "workload " + name})
					break
				}
			}
		}
	})
	return func() {
		cancel()
		group.Wait()
		line.End()
	}
}

// noteManual prints a remark for Manual workloads. Its errors do not fail the command.
func (t *tool) noteManual(cmd *cobra.Command, given []string) {
	if len(given) == 0 {
		return
	}
	namespace, err := t.Namespace()
	if err != nil {
		return
	}
	c, err := t.Client()
	if err != nil {
		return
	}
	for _, n := range scaled(given) {
		w := &rikv1alpha1.Workload{}
		err := c.Get(cmd.Context(), client.ObjectKey{Namespace: namespace, Name: n}, w)
		if err == nil && w.Spec.Deploy != rikv1alpha1.DeployAutomatic {
			_, _ = fmt.Fprintf(t.Streams.ErrOut, "note: workload %s has deploy: Manual, so its number of instances does not change; "+
				"\"rikctl create instance -w %s\" starts more\n", n, n)
		}
	}
}

// scaled returns the names of the workloads among the arguments of scale.
func scaled(given []string) []string {
	var names []string
	if !strings.Contains(given[0], "/") {
		if tg, err := target.Parse(given[0] + "/x"); err != nil || !tg.Workload {
			return nil
		}
		return given[1:]
	}
	for _, arg := range given {
		if tg, err := target.Parse(arg); err == nil && tg.Workload {
			names = append(names, tg.Name)
		}
	}
	return names
}
