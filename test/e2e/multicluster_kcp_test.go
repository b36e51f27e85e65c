package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// kcp is a running kcp with its controllers, from the built program.
type kcp struct {
	tb      testing.TB
	dir     string
	args    []string
	process *rikcluster.Process
}

// startKCP starts a kcp with its controllers and waits until it is ready. It ends with the test.
func startKCP(t *testing.T, port string, args ...string) *kcp {
	t.Helper()
	// kubectl stores its discovery cache below it.
	t.Setenv("HOME", t.TempDir())
	return runKCP(t, port, append([]string{"--run-controllers", "--discovery-poll-interval", "2s"}, args...)...)
}

// runKCP does the same, and can be used in parallel tests.
func runKCP(t *testing.T, port string, args ...string) *kcp {
	t.Helper()
	k := &kcp{tb: t, dir: filepath.Join(t.TempDir(), "kcp")}
	k.args = append([]string{"kcp", "--root-directory", k.dir, "--port", port}, args...)
	k.start(t)
	return k
}

// start starts the kcp, or restarts it if it has ended. It ends with t.
func (k *kcp) start(t *testing.T) {
	k.tb.Helper()
	k.process = rikcluster.StartProcess(t, "kcp", filepath.Join(filepath.Dir(k.dir), "kcp.log"), filepath.Join(rikcluster.Bin(t), "rik"), k.args...)
	k.eventually(func() error {
		if err := k.process.Alive(); err != nil {
			k.tb.Fatalf("the kcp ended while starting: %v\n%s", err, k.process.Tail())
		}
		return k.try("kubectl", "get", "--raw", "/readyz").Err
	})
}

// in returns the same kcp for a subtest.
func (k *kcp) in(t *testing.T) *kcp {
	inner := *k
	inner.tb = t
	return &inner
}

// kubeconfig returns the path of the administrator's.
func (k *kcp) kubeconfig() string { return filepath.Join(k.dir, "admin.kubeconfig") }

// try runs a built program as the kcp's administrator.
func (k *kcp) try(program string, args ...string) rikcluster.Result {
	k.tb.Helper()
	return rikcluster.Command(k.tb, "env", append([]string{
		"KUBECONFIG=" + k.kubeconfig(), "RIKCONFIG=" + filepath.Join(k.dir, "config.yaml"), filepath.Join(rikcluster.Bin(k.tb), program),
	}, args...)...)
}

func (k *kcp) do(program string, args ...string) string {
	k.tb.Helper()
	out := k.try(program, args...)
	if out.Err != nil {
		k.tb.Fatalf("%s %s: %v", program, strings.Join(args, " "), out.Err)
	}
	return out.Stdout
}

func (k *kcp) kubectl(args ...string) string { k.tb.Helper(); return k.do("kubectl", args...) }

// apply applies a manifest.
func (k *kcp) apply(manifest string) string {
	k.tb.Helper()
	file := filepath.Join(k.tb.TempDir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		k.tb.Fatal(err)
	}
	return k.kubectl("apply", "-f", file)
}

func (k *kcp) eventually(check func() error) {
	k.tb.Helper()
	rikcluster.Eventually(k.tb, rikcluster.Timeout, check)
}

// await waits until kubectl get prints the wanted text.
func (k *kcp) await(want string, args ...string) {
	k.tb.Helper()
	k.eventually(func() error {
		out := k.try("kubectl", append([]string{"get"}, args...)...)
		if out.Err != nil || strings.TrimSpace(out.Stdout) != want {
			return fmt.Errorf("kubectl get %s is %q, want %q (%w)", strings.Join(args, " "), out.Stdout, want, out.Err)
		}
		return nil
	})
}

// ready is the path of a Cluster's condition Ready.
const ready = `jsonpath={.status.conditions[?(@.type=="Ready")].status}`

// register registers a Kubernetes in the kcp.
func (k *kcp) register(name string, physical *kube.Cluster, args ...string) {
	k.tb.Helper()
	file := filepath.Join(k.tb.TempDir(), name+".kubeconfig")
	if err := os.WriteFile(file, physical.Kubeconfig(), 0o600); err != nil {
		k.tb.Fatal(err)
	}
	k.do("rikctl", append([]string{"cluster", "register", name, "--kubeconfig", file}, args...)...)
	// Some tests have two clusters on one Kubernetes, because each Kubernetes uses much CPU
	// time.
	k.do("rikctl", "annotate", "cluster.workload.kcp.dev", name, "workloads.kcp.dev/own-cluster=true")
}

// publish publishes a negotiated type, and waits until it is synced to a cluster.
func (k *kcp) publish(negotiated, resource, cluster string) {
	k.tb.Helper()
	k.eventually(func() error {
		return k.try("kubectl", "patch", "negotiatedapiresource", negotiated, "--type=merge", `-p={"spec":{"publish":true}}`).Err
	})
	k.eventually(func() error {
		synced := k.kubectl("get", "cluster", cluster, "-o", "jsonpath={.status.syncedResources}")
		if !strings.Contains(synced, `"`+resource+`"`) {
			return fmt.Errorf("%s is sent %s, not %s", cluster, synced, resource)
		}
		return nil
	})
}

// below returns the namespace in a physical cluster that belongs to one of the kcp, or "" while
// it does not exist.
func (k *kcp) below(physical *kube.Cluster, cluster, namespace string) string {
	k.tb.Helper()
	want := workloadv1alpha1.Locator{
		UpstreamUID: k.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"),
		Cluster:     cluster,
		ClusterUID:  k.kubectl("get", "cluster", cluster, "-o", "jsonpath={.metadata.uid}"),
		Namespace:   namespace,
	}
	namespaces, err := physical.Client().CoreV1().Namespaces().List(k.tb.Context(), metav1.ListOptions{})
	if err != nil {
		k.tb.Fatal(err)
	}
	for _, n := range namespaces.Items {
		var got workloadv1alpha1.Locator
		if raw := n.Annotations[workloadv1alpha1.LocatorAnnotation]; raw != "" && json.Unmarshal([]byte(raw), &got) == nil && got == want {
			return n.Name
		}
	}
	return ""
}

// awaitBelow waits for that namespace.
func (k *kcp) awaitBelow(physical *kube.Cluster, cluster, namespace string) string {
	k.tb.Helper()
	var found string
	k.eventually(func() error {
		if found = k.below(physical, cluster, namespace); found == "" {
			return fmt.Errorf("no namespace of %s stands for %s", cluster, namespace)
		}
		return nil
	})
	return found
}

// configMaps returns the ConfigMaps that users created in a namespace, by name.
func configMaps(t *testing.T, physical *kube.Cluster, namespace string) map[string]corev1.ConfigMap {
	t.Helper()
	list, err := physical.Client().CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]corev1.ConfigMap{}
	for _, c := range list.Items {
		if c.Name != "kube-root-ca.crt" {
			found[c.Name] = c
		}
	}
	return found
}
