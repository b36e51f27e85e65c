package e2e

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// agent is the syncer that a cluster controller has installed in a Kubernetes.
type agent struct {
	deployment appsv1.Deployment
	secret     map[string][]byte // mounted into its container
	token      string            // of its service account
}

// pullMode has a syncer installed in the cluster. No kubelet can start it there, so the test
// runs its container's command, with only the credentials of its Pod.
func pullMode(t *testing.T, k *kcp, west *kube.Cluster) {
	k.register("pulled", west, "--mode=pull")
	a := installedAgent(t, k, west)
	syncer := a.start(t, west)
	k.await("True", "cluster", "pulled", "-o", ready)

	k.kubectl("create", "namespace", "pulling")
	k.kubectl("create", "configmap", "-n", "pulling", "settings", "--from-literal=a=1")
	k.kubectl("create", "configmap", "-n", "pulling", "elsewhere", "--from-literal=a=1")
	k.kubectl("label", "configmap", "-n", "pulling", "elsewhere", workloadv1alpha1.ClusterLabel+"=west")
	k.kubectl("label", "configmap", "-n", "pulling", "settings", workloadv1alpha1.ClusterLabel+"=pulled")
	namespace := k.awaitBelow(west, "pulled", "pulling")
	k.eventually(func() error {
		if got := configMaps(t, west, namespace); len(got) != 1 || got["settings"].Data["a"] != "1" {
			return fmt.Errorf("the ConfigMaps in west are %v", got)
		}
		return nil
	})
	t.Run("its account writes nowhere else", func(t *testing.T) { a.staysInItsNamespaces(t, west) })
	t.Run("its user upstream sees nothing else", func(t *testing.T) { a.seesOnlyItsOwn(t) })
	whole := t // the new syncer continues after the subtest
	t.Run("killed and started again", func(t *testing.T) {
		syncer.Kill()
		k.kubectl("patch", "configmap", "-n", "pulling", "settings", "--type=merge", `-p={"data":{"a":"2"}}`)
		a.start(whole, west)
		k.in(t).eventually(func() error {
			if got := configMaps(t, west, namespace); len(got) != 1 || got["settings"].Data["a"] != "2" {
				return fmt.Errorf("the ConfigMaps in west are %v", got)
			}
			return nil
		})
	})
	t.Run("a cluster-scoped type", func(t *testing.T) { clusterScoped(t, k.in(t), west) })
	k.kubectl("delete", "configmap", "-n", "pulling", "settings", "--timeout=60s")
	if got := configMaps(t, west, namespace); len(got) != 0 {
		t.Errorf("after the deletion west still has %v", got)
	}
}

// globes is a cluster-scoped type.
const globes = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: globes.example.dev
spec:
  group: example.dev
  scope: Cluster
  names: {plural: globes, singular: globe, kind: Globe, listKind: GlobeList}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {turns: {type: integer}}}
            status: {type: object, properties: {seen: {type: string}}}
`

func globe(name string, turns int) string {
	return fmt.Sprintf(`
apiVersion: example.dev/v1
kind: Globe
metadata:
  name: %s
  labels: {workloads.kcp.dev/cluster: pulled}
spec: {turns: %d}
`, name, turns)
}

// clusterScoped syncs a cluster-scoped type, which a Cluster must allow by name. Only the UID of
// its counterpart identifies the owner of such an object.
func clusterScoped(t *testing.T, k *kcp, west *kube.Cluster) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, west.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	below := func(input string, args ...string) string {
		t.Helper()
		if input != "" {
			manifest := filepath.Join(t.TempDir(), "manifest.yaml")
			write(t, filepath.Dir(manifest), map[string][]byte{filepath.Base(manifest): []byte(input)})
			args = append(args, "-f", manifest)
		}
		out := rikcluster.Run(t, "kubectl", append([]string{"--kubeconfig", file}, args...)...)
		if out.Err != nil {
			t.Fatalf("kubectl %s: %v", strings.Join(args, " "), out.Err)
		}
		return out.Stdout
	}
	const spec = "jsonpath={.items[*].spec.turns}"
	below(globes, "apply")
	below("", "wait", "--for=condition=Established", "crd/globes.example.dev")
	below(strings.Replace(globe("mars", 7), "labels:", "annotations:", 1), "create")
	k.kubectl("patch", "cluster", "pulled", "--type=merge", `-p={"spec":{"clusterScopedResources":["globes.example.dev"]}}`)
	k.publish("globes.v1.example.dev", "globes.example.dev", "pulled")
	k.eventually(func() error { return k.try("kubectl", "get", "globes").Err })

	k.apply(globe("earth", 1))
	k.eventually(func() error {
		if got := below("", "get", "globes", "-l", workloadv1alpha1.ClusterLabel+"=pulled", "-o", spec); got != "1" {
			return fmt.Errorf("in west the globe turns %q", got)
		}
		return nil
	})
	below("", "patch", "globe", "earth", "--subresource=status", "--type=merge", `-p={"status":{"seen":"yes"}}`)
	k.await("yes", "globe", "earth", "-o", "jsonpath={.status.seen}")

	k.apply(globe("mars", 1))
	k.eventually(func() error {
		problem := k.kubectl("get", "globe", "mars", "-o", `jsonpath={.metadata.annotations.problem\.workloads\.kcp\.dev/pulled}`)
		if !strings.HasPrefix(problem, "Conflict") {
			return fmt.Errorf("the problem of another user's object is %q", problem)
		}
		return nil
	})
	k.await("Conflict", "events", "--field-selector", "involvedObject.name=mars", "-o", "jsonpath={.items[*].reason}")
	k.kubectl("delete", "globe", "mars", "earth", "--timeout=60s")
	if got := below("", "get", "globes", "-o", "jsonpath={.items[*].metadata.name} {.items[*].spec.turns}"); got != "mars 7" {
		t.Errorf("left in west are %q, want mars as another user made it", got)
	}
}

// installedAgent waits for the objects that the cluster controller installs.
func installedAgent(t *testing.T, k *kcp, west *kube.Cluster) *agent {
	t.Helper()
	uid := k.kubectl("get", "cluster", "pulled", "-o", "jsonpath={.metadata.uid}")
	a := &agent{}
	k.eventually(func() error {
		found, err := west.Client().AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{LabelSelector: "workloads.kcp.dev/cluster-uid=" + uid})
		if err != nil || len(found.Items) != 1 {
			return fmt.Errorf("west has no syncer installed (%w); the Cluster says %s", err, k.kubectl("get", "cluster", "pulled", "-o", "jsonpath={.status.conditions}"))
		}
		a.deployment = found.Items[0]
		return nil
	})
	pod := a.deployment.Spec.Template.Spec
	secret, err := west.Client().CoreV1().Secrets(a.deployment.Namespace).Get(t.Context(), pod.Volumes[0].Secret.SecretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.secret = secret.Data
	token, err := west.Client().CoreV1().ServiceAccounts(a.deployment.Namespace).
		CreateToken(t.Context(), pod.ServiceAccountName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.token = token.Status.Token
	return a
}

// enterPod runs a command with a Pod's files at their paths: the directory $0 is mounted over
// /etc and /run, in a private mount namespace.
const enterPod = `
mount -t tmpfs tmpfs /mnt && mkdir /mnt/over /mnt/work &&
mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/over,workdir=/mnt/work /etc &&
mount -t tmpfs tmpfs /run && cp -r "$0/etc/." /etc && cp -r "$0/run/." /run && exec "$@"`

// start runs the agent's container.
func (a *agent) start(t *testing.T, west *kube.Cluster) *rikcluster.Process {
	t.Helper()
	container := a.deployment.Spec.Template.Spec.Containers[0]
	files := t.TempDir()
	write(t, filepath.Join(files, container.VolumeMounts[0].MountPath), a.secret)
	write(t, filepath.Join(files, "run/secrets/kubernetes.io/serviceaccount"), map[string][]byte{
		"token": []byte(a.token), "ca.crt": west.Rest().CAData, "namespace": []byte(a.deployment.Namespace),
	})
	at, err := url.Parse(west.Rest().Host)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(at.Host)
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		"--mount", "--propagation=private", "--", "/bin/sh", "-c", enterPod, files,
		"env", "-i", "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port, filepath.Join(rikcluster.Bin(t), "syncer"),
	}, container.Args...)
	return rikcluster.StartProcess(t, "syncer", filepath.Join(t.TempDir(), "syncer.log"), "unshare", args...)
}

func write(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// staysInItsNamespaces tries requests that the agent's ClusterRole allows and its admission
// policy denies.
func (a *agent) staysInItsNamespaces(t *testing.T, west *kube.Cluster) {
	config := rest.AnonymousClientConfig(west.Rest())
	config.BearerToken = a.token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	object := metav1.ObjectMeta{Name: "stray"}
	for what, err := range map[string]error{
		"creating a ConfigMap in default": second(client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: object}, metav1.CreateOptions{})),
		"deleting a ConfigMap of default": client.CoreV1().ConfigMaps("default").Delete(t.Context(), "kube-root-ca.crt", metav1.DeleteOptions{}),
		"creating a Namespace":            second(client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: object}, metav1.CreateOptions{})),
		"reading the nodes":               second(client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})),
		"making a token": second(client.CoreV1().ServiceAccounts("default").
			CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it forbidden", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// seesOnlyItsOwn uses the agent's credentials for the kcp to access objects of others.
func (a *agent) seesOnlyItsOwn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, a.secret["upstream.kubeconfig"], 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(line string) rikcluster.Result {
		return rikcluster.Run(t, "kubectl", append([]string{"--kubeconfig", file}, strings.Fields(line)...)...)
	}
	for _, line := range []string{
		"get configmaps -n pulling -l workloads.kcp.dev/cluster=pulled -o name",
		"get configmap -n pulling settings -o name",
		"get cluster pulled -o name",
	} {
		if out := run(line); out.Err != nil {
			t.Errorf("kubectl %s: %v, want it to be answered", line, out.Err)
		}
	}
	for _, line := range []string{
		"get configmaps -n pulling",
		"get configmaps -A",
		"get configmaps -n pulling -l workloads.kcp.dev/cluster=west",
		"get configmap -n pulling elsewhere",
		"get secrets -A",
		"get namespaces",
		"get clusters",
		"get cluster west",
		"create configmap -n pulling another",
		"delete configmap -n pulling settings",
		"label configmap -n pulling settings a=b",
		"label configmap -n pulling elsewhere a=b",
		"get configmaps -A --as=system:admin --as-group=system:masters",
	} {
		if out := run(line); !strings.Contains(strings.ToLower(out.Stderr), "forbidden") {
			t.Errorf("kubectl %s: code %d, want it forbidden:\n%s%s", line, out.Code, out.Stdout, out.Stderr)
		}
	}
}
