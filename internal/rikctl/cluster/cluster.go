package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/scheme"
	"rik.dev/rik/internal/rikctl/waiting"
)

const (
	// detachTimeout is how long unregister waits for the cluster controller by default.
	detachTimeout = time.Minute
	// detachPoll is the interval between two looks at the Cluster.
	detachPoll = 200 * time.Millisecond
)

// notAKCP is the next step to show if a server does not have the type Cluster.
const notAKCP = `the server is not a kcp; "rik kcp" runs one and writes a configuration for it`

// NewCommand returns the command "rikctl cluster".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:   "cluster",
		Short: "Register clusters with a kcp, and unregister them",
		Long: `Register the rik and Kubernetes clusters to which a kcp sends objects.
"rikctl get clusters" and "rikctl describe cluster NAME" show them.`,
	}, t.clusterRegisterCommand(), t.clusterUnregisterCommand())
}

func (t *tool) clusterUnregisterCommand() *cobra.Command {
	timeout, output := detachTimeout, ""
	cmd := &cobra.Command{
		Use:   "unregister NAME",
		Short: "Detach a cluster from a kcp",
		Long: `Detach a cluster. The kcp no longer sends it objects, and objects in the kcp no longer
wait for it. The objects in the cluster stay as they are. To remove objects from a
cluster, first remove its label from them and wait until they are gone there.`,
		Example: cmdline.Example("rikctl cluster unregister east"),
		Args:    cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckOutput(cmd, output); err != nil {
				return err
			}
			result := unregisterResult{Cluster: given[0]}
			err := t.unregister(cmd.Context(), given[0], timeout, func(detached bool, text string) {
				result.Detached = detached
				_, _ = fmt.Fprintln(printer.Steps(t.Streams, output), text)
			})
			return printer.Result(t.Streams.Out, output, &result, &result.Outcome, err)
		},
	}
	printer.AddOutput(cmd, &output)
	cmd.Flags().DurationVar(&timeout, "timeout", detachTimeout, "timeout of the wait until the cluster is detached; 0 does not wait")
	return cmd
}

// unregisterResult is the result of "cluster unregister" for scripts.
type unregisterResult struct {
	Cluster string `json:"cluster"`
	// Detached is false if the command did not wait, or not long enough.
	Detached bool `json:"detached"`

	printer.Outcome `json:",inline"`
}

// unregister deletes a Cluster and waits until it is detached. It calls ended unless there is an error.
func (t *tool) unregister(ctx context.Context, name string, timeout time.Duration, ended func(detached bool, text string)) error {
	c, err := t.upstreamClient()
	if err != nil {
		return err
	}
	gone := &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.Delete(ctx, gone); err != nil {
		return ofCluster("detaching", name, err)
	}
	if timeout <= 0 {
		ended(false, "cluster "+name+" is being detached")
		return nil
	}
	line := waiting.Begin(ctx, t.Streams.ErrOut, waiting.Options{After: waiting.After})
	defer line.End()
	line.Set(waiting.State{For: "cluster " + name + " to be detached"})
	err = wait.PollUntilContextTimeout(ctx, detachPoll, timeout, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKey{Name: name}, gone)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	line.End()
	if wait.Interrupted(err) && ctx.Err() == nil {
		return clierror.WithNext(clierror.TimeoutError{What: "cluster " + name + " to be detached"},
			"a cluster controller detaches it; \"rik kcp --run-controllers\" runs one, and so does the program \"cluster-controller\"")
	}
	if err != nil {
		return ofCluster("detaching", name, err)
	}
	ended(true, "cluster "+name+" detached; its objects stay")
	return nil
}

// upstreamClient returns a client for the objects of a kcp. It has the types compiled in, so it
// needs no discovery.
func (t *tool) upstreamClient() (client.Client, error) {
	restConfig, err := t.Getter.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(workloadv1alpha1.SchemeGroupVersion.WithKind("Cluster"), meta.RESTScopeRoot)
	mapper.Add(kindSecret, meta.RESTScopeNamespace)
	mapper.Add(kindNamespace, meta.RESTScopeRoot)
	return client.New(restConfig, client.Options{Scheme: scheme.Scheme, Mapper: mapper})
}

// ofCluster adds to an error what rikctl was doing, and the next step if there is one.
func ofCluster(doing, name string, err error) error {
	failed := fmt.Errorf("%s cluster %s: %w", doing, name, err)
	switch {
	case clierror.IsUnknownType(err):
		return clierror.WithNext(failed, notAKCP)
	case apierrors.IsNotFound(err):
		return clierror.WithNext(failed, `"rikctl get clusters" lists the registered clusters`)
	case apierrors.IsAlreadyExists(err):
		return clierror.WithNext(failed, "--rotate gives a registered cluster new credentials; another cluster needs another name")
	}
	return failed
}

// modes lists the values of --mode.
var modes = []string{string(workloadv1alpha1.SyncPush), string(workloadv1alpha1.SyncPull), string(workloadv1alpha1.SyncNone)}

func checkMode(cmd *cobra.Command, mode string) error {
	if mode != "" && !slices.Contains(modes, mode) {
		return cmdline.Errorf(cmd, "--mode %q is not supported; use %s", mode, strings.Join(modes, ", "))
	}
	return nil
}
