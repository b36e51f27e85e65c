package rikctl

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/rikctl/scheme"
	"rik.dev/rik/internal/testkit/kcptest"
)

func TestClusterRegisterRefuses(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	file := rikctltest.Kubeconfig(t, m.home)
	broken := filepath.Join(m.home, "broken.yaml")
	if err := os.WriteFile(broken, []byte("token: "+rikctltest.Canary+": ["), 0o600); err != nil {
		t.Fatal(err)
	}
	register := []string{"cluster", "register"}
	for name, tc := range map[string]struct {
		line []string
		want string
	}{
		"no name":         {nil, "write rikctl cluster register NAME"},
		"no kubeconfig":   {[]string{"east"}, "--kubeconfig FILE is required"},
		"a name with dot": {[]string{"east.eu", "--kubeconfig", file}, `the name "east.eu"`},
		"an odd mode":     {[]string{"east", "--kubeconfig", file, "--mode", "both"}, "push, pull, none"},
		"no file":         {[]string{"east", "--kubeconfig", file + "x"}, "no such file"},
		"a broken file":   {[]string{"east", "--kubeconfig", broken}, "not a kubeconfig"},
		"no context":      {[]string{"east", "--kubeconfig", file, "--context", "north"}, "--context chooses another"},
		"a program":       {[]string{"east", "--kubeconfig", file, "--context", "runs"}, "needs a program"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := m.run(t, append(register, tc.line...)...)
			r.check(t, clierror.ExitUsage, tc.want)
			if strings.Contains(r.out+r.err, rikctltest.Canary) {
				t.Errorf("the output holds the kubeconfig:\n%s%s", r.out, r.err)
			}
		})
	}
}

// TestClusterCommands runs all cluster commands on a real kcp. No cluster controller runs, so
// the test itself detaches the clusters.
func TestClusterCommands(t *testing.T) {
	t.Parallel()
	server := sharedKCP(t)
	m := newMachine(t)
	upstream := filepath.Join(server.DataDir, "admin.kubeconfig")
	file := rikctltest.Kubeconfig(t, m.home)
	c, err := client.New(kcptest.LoopbackConfig(server), client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	register := func(line ...string) result {
		return m.run(t, append([]string{"cluster", "register", "--upstream-kubeconfig", upstream, "--kubeconfig", file}, line...)...)
	}
	made := firstVersions(t, server)
	register("east", "--mode", "pull").check(t, clierror.ExitOK, "cluster east registered")
	// The cluster controller must not find a Cluster whose Secret does not exist yet.
	if secret, cluster := made(&corev1.SecretList{}, "east"), made(&workloadv1alpha1.ClusterList{}, "east"); secret >= cluster {
		t.Errorf("the Secret was made with version %d, the Cluster with version %d", secret, cluster)
	}
	register("west", "--context", "west", "--inline").check(t, clierror.ExitOK, "cluster west registered")
	register("east").check(t, clierror.ExitConflict, "already exists", "--rotate")
	register("north", "--rotate").check(t, clierror.ExitNotFound, "rikctl get clusters")

	stored := &corev1.Secret{}
	find := func() string {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "rik-clusters", Name: "east"}, stored); err != nil {
			t.Fatal(err)
		}
		return string(stored.Data["kubeconfig"])
	}
	register("east", "--context", "west").check(t, clierror.ExitConflict, "already exists")
	if text := find(); !strings.Contains(text, "east-token") || len(stored.OwnerReferences) != 1 || stored.OwnerReferences[0].Kind != "Cluster" {
		t.Errorf("the Secret holds %s, owned by %v", text, stored.OwnerReferences)
	}
	register("east", "--context", "west", "--rotate").check(t, clierror.ExitOK, "new credentials")
	if text := find(); !strings.Contains(text, rikctltest.Canary) {
		t.Errorf("after --rotate the Secret holds %s", text)
	}

	at := func(line ...string) result {
		return m.run(t, append([]string{"--kubeconfig", upstream}, line...)...)
	}
	at("get", "clusters").check(t, clierror.ExitOK, "NAME", "READY", "east", "west")
	for _, name := range []string{"east", "west"} {
		r := at("describe", "cluster", name)
		r.check(t, clierror.ExitOK, "Kubeconfig:", "Sync mode:")
		if strings.Contains(r.out, rikctltest.Canary) {
			t.Errorf("the description holds the kubeconfig:\n%s", r.out)
		}
	}
	at("cluster", "unregister", "north").check(t, clierror.ExitNotFound, "rikctl get clusters")
	held := &workloadv1alpha1.Cluster{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "west"}, held); err != nil {
		t.Fatal(err)
	}
	held.Finalizers = []string{workloadv1alpha1.ClusterFinalizer}
	if err := c.Update(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	at("cluster", "unregister", "west", "--timeout", "1s").check(t, clierror.ExitUnreachable, "cluster-controller")
	r := at("cluster", "unregister", "east", "-o", "json")
	r.check(t, clierror.ExitOK, "cluster east detached")
	r.document(t, map[string]any{"cluster": "east", "detached": true, "error": nil})
	if err := c.Get(t.Context(), client.ObjectKey{Name: "east"}, held); !apierrors.IsNotFound(err) {
		t.Errorf("after unregister the Cluster is %v, %v", held.Name, err)
	}
}

// firstVersions returns a function that finds the resource version with which an object is
// created. It watches from now on.
func firstVersions(t *testing.T, server *kcptest.Server) func(list client.ObjectList, name string) uint64 {
	t.Helper()
	c, err := client.NewWithWatch(kcptest.LoopbackConfig(server), client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	before := &corev1.SecretList{}
	if err := c.List(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	return func(list client.ObjectList, name string) uint64 {
		t.Helper()
		// The server ends a watch when the definition of its type changes, as at its start.
		for {
			version, err := firstVersion(t.Context(), c, list, name, before.ResourceVersion)
			if err != nil {
				t.Fatal(err)
			}
			if version > 0 {
				return version
			}
		}
	}
}

// firstVersion watches objects from a version on, and returns the version with which one was made. It
// returns 0 if the watch ends before.
func firstVersion(ctx context.Context, c client.WithWatch, list client.ObjectList, name, from string) (uint64, error) {
	w, err := c.Watch(ctx, list, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: from}})
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return 0, apierrors.FromObject(event.Object)
		}
		object, ok := event.Object.(client.Object)
		if ok && event.Type == watch.Added && object.GetName() == name {
			return strconv.ParseUint(object.GetResourceVersion(), 10, 64)
		}
	}
	return 0, ctx.Err()
}

// TestClusterCommandsNeedAKCP checks that the commands report a server that is not a kcp, with
// the next step.
func TestClusterCommandsNeedAKCP(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.run(t, "cluster", "register", "east", "--kubeconfig", rikctltest.Kubeconfig(t, s.home)).check(t, clierror.ExitNotFound, "not a kcp")
	s.run(t, "cluster", "unregister", "east").check(t, clierror.ExitNotFound, "not a kcp")
}
