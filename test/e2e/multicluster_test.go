package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedMulticluster uses a kcp with a real Kubernetes. make demo-multicluster, which
// TestPrivilegedDemo runs, also has a rik cluster.
func TestPrivilegedMulticluster(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	west := kube.Start(t, kube.Options{ControllerManager: true, Kubelet: true})
	k := startKCP(t, "6443", "--push-mode", "--syncer-image", "rik-syncer:test")
	k.register("west", west)
	k.await("True", "cluster", "west", "-o", ready)
	k.publish("deployments.v1.apps", "deployments.apps", "west")

	t.Run("kubectl on an imported Deployment", func(t *testing.T) { kubectlOnDeployment(t, k.in(t), west) })
	t.Run("moved away and back", func(t *testing.T) { movedAway(t, k.in(t), west) })
	t.Run("cut off for a while", func(t *testing.T) { cutOff(t, k.in(t), west) })
	t.Run("two kcps on one cluster", func(t *testing.T) { twoKCPs(t, k.in(t), west) })
	t.Run("pull mode", func(t *testing.T) { pullMode(t, k.in(t), west) })
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {workloads.kcp.dev/cluster: west}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - {name: web, image: "web:1"}
`

// kubectlOnDeployment runs kubectl commands on a Deployment that send strategic merge patches.
// Servers of custom resources refuse these.
func kubectlOnDeployment(t *testing.T, k *kcp, west *kube.Cluster) {
	k.apply(deployment)
	if out := k.apply(deployment); !strings.Contains(out, "unchanged") {
		t.Errorf("a second apply says %q", out)
	}
	k.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
	if out := k.apply(strings.Replace(deployment, "web:1", "web:2", 1)); !strings.Contains(out, "configured") {
		t.Errorf("an apply with another image says %q", out)
	}
	t.Setenv("KUBE_EDITOR", "sed -i s/web:2/web:3/")
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"edit", "deployment", "web"}, "edited"},
		{[]string{"set", "image", "deployment/web", "web=web:4"}, "image updated"},
		{[]string{"rollout", "restart", "deployment/web"}, "restarted"},
		{[]string{"scale", "deployment/web", "--replicas=2"}, "scaled"},
		{[]string{"rollout", "status", "deployment/web", "--timeout=120s"}, "successfully rolled out"},
	} {
		if out := k.kubectl(step.args...); !strings.Contains(out, step.want) {
			t.Errorf("kubectl %v says %q, want %q", step.args, out, step.want)
		}
	}
	k.await("2 web:4", "deployment", "web", "-o", "jsonpath={.status.readyReplicas} {.spec.template.spec.containers[0].image}")

	namespace := k.below(west, "west", "default")
	below, err := west.Client().AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := below.Spec.Template.Spec.Containers[0].Image; got != "web:4" || *below.Spec.Replicas != 2 {
		t.Errorf("in west the image is %s with %d replicas, want web:4 with 2", got, *below.Spec.Replicas)
	}
	if below.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] == "" {
		t.Errorf("the restart has not come to west: %v", below.Spec.Template.Annotations)
	}
	k.kubectl("delete", "deployment", "web", "--timeout=60s")
	// The finalizer kept the upstream object until it was gone below.
	if _, err := west.Client().AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Deployment in west after its deletion: %v, want it not found", err)
	}
}

// movedAway removes the target label from an object and sets it again.
func movedAway(t *testing.T, k *kcp, west *kube.Cluster) {
	k.kubectl("create", "namespace", "moving")
	k.kubectl("create", "configmap", "-n", "moving", "settings", "--from-literal=a=1")
	k.kubectl("label", "configmap", "-n", "moving", "settings", workloadv1alpha1.ClusterLabel+"=west")
	namespace := k.awaitBelow(west, "west", "moving")
	there := func(want int) {
		t.Helper()
		k.eventually(func() error {
			if got := configMaps(t, west, namespace); len(got) != want {
				return fmt.Errorf("%d ConfigMaps in west, want %d", len(got), want)
			}
			return nil
		})
	}
	there(1)
	k.kubectl("label", "configmap", "-n", "moving", "settings", workloadv1alpha1.ClusterLabel+"-")
	there(0)
	k.await("", "configmap", "-n", "moving", "settings", "-o", "jsonpath={.metadata.finalizers}")
	k.kubectl("label", "configmap", "-n", "moving", "settings", workloadv1alpha1.TargetLabelPrefix+"west=true")
	there(1)
	k.kubectl("delete", "configmap", "-n", "moving", "settings", "--timeout=60s")
	there(0)
}

// cutOff changes and deletes objects while the cluster is unreachable.
func cutOff(t *testing.T, k *kcp, west *kube.Cluster) {
	k.kubectl("create", "namespace", "storm")
	for i := range 6 {
		k.apply(numbered(i, "before"))
	}
	namespace := k.awaitBelow(west, "west", "storm")
	k.eventually(func() error {
		if got := configMaps(t, west, namespace); len(got) != 6 {
			return fmt.Errorf("%d ConfigMaps in west, want 6", len(got))
		}
		return nil
	})

	west.Cut()
	k.kubectl("delete", "configmap", "-n", "storm", "c0", "c1", "--wait=false")
	k.apply(numbered(2, "meanwhile"))
	k.apply(numbered(6, "meanwhile"))
	k.await(`False ClusterUnreachable`, "cluster", "west", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]['status','reason']}`)
	// The objects wait for the unreachable cluster, and still exist.
	k.kubectl("get", "configmap", "-n", "storm", "c0", "c1")
	west.Mend(t)

	k.await("True", "cluster", "west", "-o", ready)
	want := map[string]string{"c2": "meanwhile", "c3": "before", "c4": "before", "c5": "before", "c6": "meanwhile"}
	k.eventually(func() error {
		got := map[string]string{}
		for name, c := range configMaps(t, west, namespace) {
			got[name] = c.Data["said"]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("in west (-want +got):\n%s", diff)
		}
		return nil
	})
	k.await("c2 c3 c4 c5 c6 kube-root-ca.crt", "configmaps", "-n", "storm", "-o", "jsonpath={.items[*].metadata.name}")
}

func numbered(i int, said string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata:
  name: c%d
  namespace: storm
  labels: {workloads.kcp.dev/cluster: west}
data: {said: %s}
`, i, said)
}

// twoKCPs have the same namespace, the same object and the same name for one cluster.
func twoKCPs(t *testing.T, first *kcp, west *kube.Cluster) {
	second := startKCP(t, "6444", "--push-mode")
	second.register("west", west)
	second.await("True", "cluster", "west", "-o", ready)
	both := map[string]*kcp{"first": first, "second": second}
	namespaces := map[string]string{}
	for name, k := range both {
		k.kubectl("create", "namespace", "same")
		k.kubectl("create", "configmap", "-n", "same", "settings", "--from-literal=from="+name)
		k.kubectl("label", "configmap", "-n", "same", "settings", workloadv1alpha1.ClusterLabel+"=west")
		namespaces[name] = k.awaitBelow(west, "west", "same")
	}
	if namespaces["first"] == namespaces["second"] {
		t.Fatalf("both kcps have the namespace %s", namespaces["first"])
	}
	holds := func(name string, want string) {
		t.Helper()
		first.eventually(func() error {
			if got := configMaps(t, west, namespaces[name])["settings"].Data["from"]; got != want {
				return fmt.Errorf("the ConfigMap of the %s says %q, want %q", name, got, want)
			}
			return nil
		})
	}
	holds("first", "first")
	holds("second", "second")
	second.kubectl("delete", "configmap", "-n", "same", "settings", "--timeout=60s")
	holds("second", "")
	holds("first", "first")
}
