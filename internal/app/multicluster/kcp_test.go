package multicluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/output"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/process"
	"rik.dev/rik/internal/testkit/program"
)

func TestKCPRefusesInvalidFlags(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"two modes":       {[]string{"--push-mode", "--pull-mode"}, "must not be set together"},
		"no image":        {[]string{"--pull-mode"}, "--syncer-image"},
		"no threads":      {[]string{"--apiresource-controller-threads", "0"}, "use at least 1"},
		"no interval":     {[]string{"--discovery-poll-interval", "0s"}, "--discovery-poll-interval"},
		"power":           {[]string{"--resources-to-sync", "clusterroles.rbac.authorization.k8s.io"}, "clusterroles.rbac.authorization.k8s.io"},
		"two datastores":  {[]string{"--etcd-servers", "https://a:1", "--datastore-endpoint", "https://b:1"}, "set only one of them"},
		"no datastore":    {[]string{"--etcd-servers", "ftp://a"}, "ftp"},
		"a port":          {[]string{"--port", "99999"}, "99999"},
		"an address":      {[]string{"--bind-address", "here"}, `"here"`},
		"a level":         {[]string{"--log-level", "loud"}, "use debug, info, warn or error"},
		"a format":        {[]string{"--log-format", "xml"}, "use text or json"},
		"an argument":     {[]string{"east"}, `unexpected argument "east"`},
		"an unknown flag": {[]string{"--nothing"}, "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "root")
			err := execute(t.Context(), kcpCommand(), io.Discard, append([]string{"--root-directory", dir}, tc.args...)...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("kcp %q = %v, want %q", tc.args, err, tc.want)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it created its directory: %v", err)
			}
		})
	}
}

func TestClusterControllerRefusesInvalidFlags(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no kcp":    {nil, "--kubeconfig FILE"},
		"no file":   {[]string{"--kubeconfig", "/nowhere/kubeconfig"}, "reading --kubeconfig"},
		"two modes": {[]string{"--kubeconfig", "f", "--push-mode", "--pull-mode"}, errModes.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := execute(t.Context(), clusterControllerCommand(), io.Discard, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("cluster-controller %q = %v, want %q", tc.args, err, tc.want)
			}
		})
	}
}

func execute(ctx context.Context, c *cobra.Command, log io.Writer, args ...string) error {
	c.SetOut(log)
	c.SetErr(log)
	c.SilenceErrors, c.SilenceUsage = true, true
	// without arguments, it would use those of the test program
	c.SetArgs(append([]string{}, args...))
	return c.ExecuteContext(ctx)
}

// upstream waits for the kubeconfig of a kcp, and for the kcp.
func upstream(t *testing.T, root string) *rest.Config {
	t.Helper()
	var config *rest.Config
	file := filepath.Join(root, "admin.kubeconfig")
	poll.Until(t, kube.Timeout, "the kcp is ready", func(ctx context.Context) error {
		var err error
		if config, err = clientcmd.BuildConfigFromFlags("", file); err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the administrator's kubeconfig = %v, %v", info.Mode(), err)
	}
	return config
}

// TestKCPSyncsADeployment tests all controllers inside the kcp. A real Kubernetes cluster is
// registered, and its Deployments are negotiated and published. A labeled Deployment arrives and
// is deleted. TestPrivilegedMulticlusterDrills in test/e2e tests the controllers in programs of
// their own. This test runs the built program. A kcp in the test process is so much slower under
// the race detector that the test would not finish on a busy machine.
func TestKCPSyncsADeployment(t *testing.T) {
	dir, err := program.Dir()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "root")
	kcp, err := process.Start(filepath.Join(dir, "kcp"), filepath.Join(t.TempDir(), "log"),
		"--root-directory", root, "--bind-address", "127.0.0.1", "--port", "0",
		"--push-mode", "--auto-publish-apis", "--log-level", "debug", "--discovery-poll-interval", "5s")
	if err != nil {
		t.Fatalf("starting the program that make build makes: %v", err)
	}
	log := output.OfFailed(t)
	t.Cleanup(func() {
		if err := kcp.Stop(); err != nil {
			t.Error(err)
		}
		fmt.Fprint(log, kcp.Log())
	})
	syncOne(t, upstream(t, root), "inside")
}

func syncOne(t *testing.T, config *rest.Config, cluster string) {
	t.Helper()
	physical := kube.Shared(t)
	register(t, config, cluster, physical.Kubeconfig())
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "web"}
	web := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Labels: map[string]string{workloadv1alpha1.ClusterLabel: cluster}},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}},
			},
		},
	}
	upstreamDeployments := client.AppsV1().Deployments("default")
	if _, err := upstreamDeployments.Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	count := func(ctx context.Context) (int, error) {
		list, err := physical.Client().AppsV1().Deployments("").List(ctx, metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel + "=" + cluster})
		return len(list.Items), err
	}
	poll.Until(t, kube.Timeout, "the Deployment arrives", func(ctx context.Context) error { return expectCount(ctx, count, 1) })
	if err := upstreamDeployments.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, kube.Timeout, "the Deployment goes", func(ctx context.Context) error { return expectCount(ctx, count, 0) })
	poll.Until(t, kube.Timeout, "it is gone from the kcp too", func(ctx context.Context) error {
		list, err := upstreamDeployments.List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%v hold it", list.Items[0].Finalizers)
		}
		return err
	})
}

func expectCount(ctx context.Context, count func(context.Context) (int, error), want int) error {
	got, err := count(ctx)
	if err == nil && got != want {
		err = fmt.Errorf("%d Deployments, want %d", got, want)
	}
	return err
}

// register creates a Cluster and waits until Deployments are copied to it.
func register(t *testing.T, config *rest.Config, name string, kubeconfig []byte) {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	clusters := client.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters"))
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": workloadv1alpha1.SchemeGroupVersion.String(), "kind": "Cluster",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"kubeconfig": string(kubeconfig)},
	}}
	if _, err := clusters.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, kube.Timeout, "Deployments are synced", func(ctx context.Context) error {
		object, err := clusters.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		cluster := &workloadv1alpha1.Cluster{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, cluster); err != nil {
			return err
		}
		ready := slices.ContainsFunc(cluster.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == workloadv1alpha1.ConditionReady && c.Status == metav1.ConditionTrue
		})
		if !ready || !slices.Contains(cluster.Status.SyncedResources, "deployments.apps") {
			return fmt.Errorf("synced are %v, conditions are %v", cluster.Status.SyncedResources, cluster.Status.Conditions)
		}
		return nil
	})
}
