package apiserver_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
)

// deploymentOf creates a Deployment with additional lines of YAML in its spec, pod and
// container.
func deploymentOf(t *testing.T, name, spec, pod, container string) *appsv1.Deployment {
	t.Helper()
	text := fmt.Sprintf(`
metadata: {name: %s}
spec:
  selector: {matchLabels: {app: web}}
  %s
  template:
    metadata: {labels: {app: web}}
    spec:
      %s
      containers:
        - name: main
          image: registry.example/web:1
          %s
`, name, spec, pod, container)
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

// TestDeploymentsRefuse: a field that rik does not honor is refused with its path and an
// alternative.
func TestDeploymentsRefuse(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	deployments := s.Client.AppsV1().Deployments(s.Namespace(t))
	const spec, pod, container = 0, 1, 2
	for _, tc := range []struct {
		name       string
		where      int
		yaml, says string
	}{
		{"min ready", spec, "minReadySeconds: 3", "spec.minReadySeconds"},
		{"no deadline", spec, "progressDeadlineSeconds: 2147483647", "spec.progressDeadlineSeconds"},
		{"too many", spec, "replicas: 2000000", "spec.replicas"},
		{"surge", spec, "strategy: {rollingUpdate: {maxSurge: 5000%}}", "spec.strategy.rollingUpdate.maxSurge"},
		{"host pid", pod, "hostPID: true", "spec.template.spec.hostPID"},
		{"node name", pod, "nodeName: n1", "use nodeSelector"},
		{"service account", pod, "serviceAccountName: builder", "automountServiceAccountToken: false"},
		{"token", pod, "automountServiceAccountToken: true", "spec.template.spec.automountServiceAccountToken"},
		{"claim", pod, "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]", "spec.template.spec.volumes[0].persistentVolumeClaim"},
		{"size on disk", pod, "volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]", "spec.template.spec.volumes[0].emptyDir.sizeLimit"},
		{"mode of an item", pod, "volumes: [{name: v, secret: {secretName: s, items: [{key: k, path: p, mode: 256}]}}]", "items[0].mode"},
		{"fs group", pod, "securityContext: {fsGroup: 1}", "spec.template.spec.securityContext.fsGroup"},
		{"preferred", pod, "affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {a: b}}}}]}}", "topologySpreadConstraints"},
		{"operator", pod, "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Gt, values: ['1']}]}]}}}", "nodeSelectorTerms[0].matchExpressions[0].operator"},
		{"spread of others", pod, "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {other: x}}}]", "topologySpreadConstraints[0].labelSelector"},
		{"toleration", pod, "tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]", "tolerations[0].tolerationSeconds"},
		{"sidecar", pod, "initContainers: [{name: i, image: x, restartPolicy: Always}]", "spec.template.spec.initContainers[0].restartPolicy"},
		{"hook", container, "lifecycle: {preStop: {exec: {command: [x]}}}", "containers[0].lifecycle"},
		{"grpc", container, "readinessProbe: {grpc: {port: 1}}", "readinessProbe.grpc"},
		{"probe elsewhere", container, "livenessProbe: {httpGet: {port: 1, host: other}}", "livenessProbe.httpGet.host"},
		{"probe of no port", container, "livenessProbe: {httpGet: {port: missing}}", "livenessProbe.httpGet.port"},
		{"memory", container, "resources: {limits: {memory: 1Mi}}", "spec.template.spec.containers[0].resources.limits[memory]"},
		{"gpu", container, "resources: {limits: {example.com/gpu: 1}}", "resources.limits[example.com/gpu]"},
		{"disk", container, "resources: {limits: {ephemeral-storage: 1Gi}}", "resources.limits[ephemeral-storage]"},
		{"label", container, "env: [{name: A, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['a']\"}}}]", "env[0].valueFrom.fieldRef.fieldPath"},
		{"resource", container, "env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]", "env[0].valueFrom.resourceFieldRef"},
		{"escalation", container, "securityContext: {allowPrivilegeEscalation: true}", "securityContext.allowPrivilegeEscalation"},
		{"group", container, "securityContext: {runAsGroup: 5}", "runAsUser"},
		{"unconfined", container, "securityContext: {seccompProfile: {type: Unconfined}}", "securityContext.seccompProfile.type"},
		{"capability", container, "securityContext: {capabilities: {drop: [CAP_CHOWN]}}", "securityContext.capabilities.drop"},
		{"host address", container, "ports: [{containerPort: 1, hostPort: 1, hostIP: 127.0.0.1}]", "ports[0].hostIP"},
		{"stdin", container, "stdin: true", "containers[0].stdin"},
		{"theirs", container, "imagePullPolicy: Sometimes", "containers[0].imagePullPolicy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lines := [3]string{}
			lines[tc.where] = tc.yaml
			_, err := deployments.Create(t.Context(), deploymentOf(t, "refused", lines[spec], lines[pod], lines[container]), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("creating it: %v, want it invalid saying %s", err, tc.says)
			}
		})
	}
	long := deploymentOf(t, strings.Repeat("x", 60), "", "", "")
	if _, err := deployments.Create(t.Context(), long, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.name") {
		t.Errorf("creating one with a long name: %v", err)
	}
}

// TestDeploymentsServe: Deployments support the ways in which kubectl and other clients write.
func TestDeploymentsServe(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	deployments := s.Client.AppsV1().Deployments(s.Namespace(t))
	made, err := deployments.Create(t.Context(), deploymentOf(t, "web", "", "", ""), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Generation != 1 || *made.Spec.Replicas != 1 || made.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Errorf("created: %+v, want Kubernetes' defaults", made.Spec)
	}
	patched, err := deployments.Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"registry.example/web:2"}]}}}}`), metav1.PatchOptions{})
	if err != nil || patched.Generation != 2 || patched.Spec.Template.Spec.Containers[0].Image != "registry.example/web:2" {
		t.Errorf("a strategic merge patch: %v", err)
	}
	applied, err := deployments.Patch(t.Context(), "web", types.ApplyPatchType,
		[]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"paused":true}}`), metav1.PatchOptions{FieldManager: "test"})
	if err != nil || !applied.Spec.Paused {
		t.Errorf("a server-side apply: %v", err)
	}
	scale, err := deployments.GetScale(t.Context(), "web", metav1.GetOptions{})
	if err != nil || scale.Status.Selector != "app=web" {
		t.Fatalf("the scale: %+v, %v", scale, err)
	}
	scale.Spec.Replicas = 5
	if _, err := deployments.UpdateScale(t.Context(), "web", scale, metav1.UpdateOptions{}); err != nil {
		t.Errorf("scaling: %v", err)
	}
	scale.Spec.Replicas, scale.ResourceVersion = 2_000_000, ""
	if _, err := deployments.UpdateScale(t.Context(), "web", scale, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("scaling beyond what a workload may have: %v, want it refused", err)
	}
	now, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || *now.Spec.Replicas != 5 {
		t.Fatalf("after scaling: %+v, %v", now, err)
	}
	now.Status.ReadyReplicas, now.Status.Replicas, now.Spec.Paused = 1, 1, false
	written, err := deployments.UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
	if err != nil || written.Status.ReadyReplicas != 1 || !written.Spec.Paused {
		t.Errorf("the status: %+v, %v, want it alone written", written, err)
	}
}

// TestDeploymentsNeedPrivileges: the controller, which has all permissions, writes the
// Workload. The privileges of the Deployment's writer are therefore checked for the Deployment.
func TestDeploymentsNeedPrivileges(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	namespace := s.Namespace(t)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "editor"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "editor-of-" + namespace}},
	}
	if _, err := s.Client.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(s.Config)
	config.Impersonate.UserName = binding.Subjects[0].Name
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	theirs, admins := client.AppsV1().Deployments(namespace), s.Client.AppsV1().Deployments(namespace)
	poll.Until(t, apitest.Timeout, "the editor may create deployments", func(ctx context.Context) error {
		_, err := theirs.Create(ctx, deploymentOf(t, "plain", "", "", ""), metav1.CreateOptions{})
		return err
	})
	for name, lines := range map[string][2]string{
		"volumes[0].hostPath":                  {"volumes: [{name: v, hostPath: {path: /etc}}]", ""},
		"spec.template.spec.hostNetwork":       {"hostNetwork: true", ""},
		"securityContext.privileged":           {"", "securityContext: {privileged: true}"},
		"containers[0].securityContext.capabi": {"", "securityContext: {capabilities: {add: [NET_ADMIN]}}"},
	} {
		d := deploymentOf(t, "privileged", "", lines[0], lines[1])
		if _, err := theirs.Create(t.Context(), d, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want it forbidden by its path", name, err)
		}
		if _, err := admins.Create(t.Context(), d, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Errorf("%s by an administrator: %v", name, err)
		}
	}
	patch := []byte(`{"spec":{"template":{"spec":{"hostNetwork":true}}}}`)
	if _, err := theirs.Patch(t.Context(), "plain", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a patch that adds a privilege: %v, want it forbidden", err)
	}
	if _, err := admins.Patch(t.Context(), "plain", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	image := []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"registry.example/evil:1"}]}}}}`)
	if _, err := theirs.Patch(t.Context(), "plain", types.StrategicMergePatchType, image, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another image with an administrator's privileges: %v, want it forbidden", err)
	}
	if _, err := theirs.Patch(t.Context(), "plain", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("scaling it: %v, want it allowed", err)
	}
}
