package strategic_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/testkit/kcptest"
)

func TestMain(m *testing.M) { os.Exit(kcptest.RunMain(m)) }

const manifest = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: %s
spec:
  selector: {matchLabels: {app: web}}
  strategy: {type: %s}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: front, image: "front:%d", env: [{name: LEVEL, value: low}]}
      - {name: back, image: "back:1"}
`

// deployments returns a kcp with a CRD of Deployments, and a namespace for one test.
func deployments(t *testing.T) (*kcptest.Server, string) {
	t.Helper()
	s := kcptest.Shared(t)
	kubectl(t, s, "", "apply", "--server-side", "--force-conflicts", "-f", filepath.Join("testdata", "deployments.yaml"))
	kubectl(t, s, "", "wait", "--for=condition=Established", "--timeout=60s", "crd/deployments.apps")
	return s, s.Namespace(t)
}

func kubectl(t *testing.T, s *kcptest.Server, input string, args ...string) string {
	t.Helper()
	out, err := s.Kubectl(t, input, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func deployment(t *testing.T, s *kcptest.Server, namespace string) *appsv1.Deployment {
	t.Helper()
	d, err := s.Client.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func images(d *appsv1.Deployment) string {
	var all []string
	for _, c := range d.Spec.Template.Spec.Containers {
		all = append(all, c.Image)
	}
	return strings.Join(all, " ")
}

// TestKubectlDrivesDeployments runs common kubectl commands on a Deployment that is defined by
// a CRD. Kubernetes' own handler of CRDs refuses each of them.
func TestKubectlDrivesDeployments(t *testing.T) {
	s, namespace := deployments(t)
	apply := func(strategy string, version int, flags ...string) string {
		return kubectl(t, s, fmt.Sprintf(manifest, namespace, strategy, version), append([]string{"apply", "-f", "-"}, flags...)...)
	}
	on := func(args ...string) string { return kubectl(t, s, "", append([]string{"-n", namespace}, args...)...) }

	apply("RollingUpdate", 1)
	if got := images(deployment(t, s, namespace)); got != "front:1 back:1" {
		t.Fatalf("images after the first apply = %q", got)
	}
	if out := apply("RollingUpdate", 1); !strings.Contains(out, "unchanged") {
		t.Errorf("the same again: %s", out)
	}
	if out := apply("Recreate", 2, "--dry-run=server"); !strings.Contains(out, "configured (server dry run)") || images(deployment(t, s, namespace)) != "front:1 back:1" {
		t.Errorf("a dry run: %s, and images are %q", out, images(deployment(t, s, namespace)))
	}
	apply("Recreate", 2)
	if d := deployment(t, s, namespace); images(d) != "front:2 back:1" || d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		t.Errorf("after the second apply: %q, %q", images(d), d.Spec.Strategy.Type)
	}
	on("set", "image", "deployment/web", "back=back:3")
	if got := images(deployment(t, s, namespace)); got != "front:2 back:3" {
		t.Errorf("images after set image = %q", got)
	}
	on("set", "env", "deployment/web", "-c", "front", "LEVEL-", "MORE=1")
	if got := deployment(t, s, namespace).Spec.Template.Spec.Containers[0].Env; !slices.Equal(got, []corev1.EnvVar{{Name: "MORE", Value: "1"}}) {
		t.Errorf("environment after set env = %v", got)
	}
	on("rollout", "restart", "deployment/web")
	if deployment(t, s, namespace).Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] == "" {
		t.Error("rollout restart left no annotation")
	}
	on("rollout", "pause", "deployment/web")
	on("rollout", "resume", "deployment/web")
	on("scale", "deployment/web", "--replicas=4")
	on("label", "deployment/web", "tier=gold")
	t.Setenv("KUBE_EDITOR", "sed -i s/front:2/front:9/")
	on("edit", "deployment/web")
	d := deployment(t, s, namespace)
	if images(d) != "front:9 back:3" || *d.Spec.Replicas != 4 || d.Spec.Paused || d.Labels["tier"] != "gold" {
		t.Errorf("at the end: images %q, %d replicas, paused %v, labels %v", images(d), *d.Spec.Replicas, d.Spec.Paused, d.Labels)
	}
	on("patch", "deployment/web", "--subresource=status", "-p", `{"status":{"replicas":4,"conditions":[{"type":"Available","status":"True"}]}}`)
	on("patch", "deployment/web", "--subresource=scale", "-p", `{"spec":{"replicas":2}}`)
	if d := deployment(t, s, namespace); d.Status.Replicas != 4 || *d.Spec.Replicas != 2 {
		t.Errorf("after patches of status and scale: %d, %d", d.Status.Replicas, *d.Spec.Replicas)
	}
}

// TestTypedClientsWrite: the typed clients of client-go, which kubectl uses for some types,
// send protobuf.
func TestTypedClientsWrite(t *testing.T) {
	t.Parallel()
	s, namespace := deployments(t)
	kubectl(t, s, "", "-n", namespace, "create", "deployment", "web", "--image=front:1", "--replicas=2")
	d := deployment(t, s, namespace)
	if images(d) != "front:1" || *d.Spec.Replicas != 2 {
		t.Errorf("created: images %q, %d replicas", images(d), *d.Spec.Replicas)
	}
	web := s.Client.AppsV1().Deployments(namespace)
	*d.Spec.Replicas = 5
	if _, err := web.Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale, err := web.GetScale(t.Context(), "web", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 5 {
		t.Fatalf("scale = %v, %v", scale, err)
	}
	scale.Spec.Replicas = 6
	if _, err := web.UpdateScale(t.Context(), "web", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	d = deployment(t, s, namespace)
	d.Status.Replicas = 6
	if _, err := web.UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if d = deployment(t, s, namespace); *d.Spec.Replicas != 6 || d.Status.Replicas != 6 {
		t.Errorf("at the end %d replicas are wanted and %d there", *d.Spec.Replicas, d.Status.Replicas)
	}
	if err := web.Delete(t.Context(), "web", *metav1.NewDeleteOptions(0)); err != nil {
		t.Error(err)
	}
}

// TestPatchKeepsWhatItWasAsked: field manager, strictness, preconditions and refusals work as
// for the server's native types.
func TestPatchKeepsWhatItWasAsked(t *testing.T) {
	t.Parallel()
	s, namespace := deployments(t)
	kubectl(t, s, fmt.Sprintf(manifest, namespace, "Recreate", 1), "create", "-f", "-")
	web := s.Client.AppsV1().Deployments(namespace)
	patch := func(name, document string, options metav1.PatchOptions) (*appsv1.Deployment, error) {
		return web.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(document), options)
	}

	d, err := patch("web", `{"spec":{"replicas":3}}`, metav1.PatchOptions{FieldManager: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	isTester := func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == "tester" && e.Operation == metav1.ManagedFieldsOperationUpdate && e.FieldsV1.GetRawString() == `{"f:spec":{"f:replicas":{}}}`
	}
	if !slices.ContainsFunc(d.ManagedFields, isTester) {
		t.Errorf("managed fields = %v, want tester to own the replicas alone", d.ManagedFields)
	}
	if _, err := patch("web", `{"metadata":{"resourceVersion":"1"},"spec":{"replicas":5}}`, metav1.PatchOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a version of its own that is old: %v, want a conflict", err)
	}
	if _, err := patch("none", `{"spec":{"replicas":5}}`, metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an object that is not there: %v", err)
	}
	strict := metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict}
	if _, err := patch("web", `{"spec":{"replicsa":5}}`, strict); err == nil || !strings.Contains(err.Error(), "replicsa") {
		t.Errorf("an unknown field, strictly: %v, want it named", err)
	}
	if _, err := patch("web", `{"spec":{"replicas":5,"replicas":6}}`, strict); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "replicas") {
		t.Errorf("a field given twice, strictly: %v, want it named", err)
	}
	if _, err := patch("web", `{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}`, metav1.PatchOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("a list without its key: %v", err)
	}
	if _, err := patch("web", `{"spec":{"replicas":"many"}}`, metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a text for a number: %v, want it refused by the schema", err)
	}
	if got := *deployment(t, s, namespace).Spec.Replicas; got != 3 {
		t.Errorf("replicas after what was refused = %d, want 3", got)
	}
}

// TestPatchesAtOnceAllCount: no patch is lost when others write concurrently.
func TestPatchesAtOnceAllCount(t *testing.T) {
	t.Parallel()
	s, namespace := deployments(t)
	kubectl(t, s, fmt.Sprintf(manifest, namespace, "Recreate", 1), "create", "-f", "-")
	const writers = 12 // each may lose to all others in turn
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			document := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"c%d","image":"i"}]}}}}`, i)
			if _, err := s.Client.AppsV1().Deployments(namespace).Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(document), metav1.PatchOptions{}); err != nil {
				t.Errorf("writer %d: %v", i, err)
			}
		})
	}
	group.Wait()
	if got := len(deployment(t, s, namespace).Spec.Template.Spec.Containers); got != 2+writers {
		t.Errorf("%d containers, want %d", got, 2+writers)
	}
}
