package splitter

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

const pod = `
    metadata: {labels: {app: web, tier: front}}
    spec:
      serviceAccountName: runner
      imagePullSecrets: [{name: pull}]
      initContainers:
      - name: init
        env: [{name: A, valueFrom: {secretKeyRef: {name: first, key: k, optional: true}}}, {name: B, value: plain}]
      containers:
      - name: web
        envFrom: [{configMapRef: {name: env}}, {secretRef: {name: first}}]
        env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: k}}}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
      volumes:
      - {name: a, configMap: {name: files, optional: true}}
      - {name: b, secret: {secretName: keys}}
      - {name: c, persistentVolumeClaim: {claimName: data}}
      - {name: d, projected: {sources: [{configMap: {name: kube-root-ca.crt}}, {configMap: {name: more}}, {secret: {name: token}}]}}
      - {name: e, csi: {driver: x, nodePublishSecretRef: {name: storage}}}
      - {name: f, emptyDir: {}}
`

func TestNeeds(t *testing.T) {
	t.Parallel()
	ofPod := []Need{
		{Kind: "ConfigMap", Name: "env"}, {Kind: "ConfigMap", Name: "files", Optional: true}, {Kind: "ConfigMap", Name: "more"}, {Kind: "ConfigMap", Name: "settings"},
		{Kind: "PersistentVolumeClaim", Name: "data"},
		{Kind: "Secret", Name: "first"}, {Kind: "Secret", Name: "keys"}, {Kind: "Secret", Name: "pull"}, {Kind: "Secret", Name: "storage"}, {Kind: "Secret", Name: "token"},
		{Kind: "ServiceAccount", Name: "runner"},
	}
	for name, tc := range map[string]struct {
		text string
		want []Need
	}{
		"a deployment":        {"apiVersion: apps/v1\nkind: Deployment\nspec:\n  template:" + pod, ofPod},
		"a kind of one's own": {"apiVersion: example.com/v1\nkind: Shop\nspec:\n  template:" + pod, ofPod},
		"a cron job":          {"apiVersion: batch/v1\nkind: CronJob\nspec:\n jobTemplate:\n  spec:\n   template:" + pod, ofPod},
		"a stateful set": {"{apiVersion: apps/v1, kind: StatefulSet, spec: {serviceName: db, template: {spec: {serviceAccount: default}}}}",
			[]Need{{Kind: "Service", Name: "db"}}},
		"an account": {"{apiVersion: v1, kind: ServiceAccount, imagePullSecrets: [{name: pull}]}", []Need{{Kind: "Secret", Name: "pull"}}},
		"an ingress": {"{apiVersion: networking.k8s.io/v1, kind: Ingress, spec: {defaultBackend: {service: {name: a}}, tls: [{secretName: cert}], rules: [{host: x}, {http: {paths: [{path: /, backend: {service: {name: b}}}, {path: /c, backend: {resource: {kind: X, name: other}}}]}}]}}",
			[]Need{{Kind: "Secret", Name: "cert"}, {Kind: "Service", Name: "a"}, {Kind: "Service", Name: "b"}}},
		"another kind of template": {"{apiVersion: example.com/v1, kind: Page, spec: {template: plain}}", nil},
		"a template of machines":   {"{apiVersion: example.com/v1, kind: Fleet, spec: {template: {spec: {volumes: {root: 10Gi}}}}}", nil},
		"nothing":                  {"{apiVersion: v1, kind: ConfigMap}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Needs(object(t, tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(want, got):\n%s", diff)
			}
		})
	}
	if _, err := Needs(object(t, "{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: many}}}}")); err == nil {
		t.Error("a template that cannot be read has no needs, want an error")
	}
}

func TestSelects(t *testing.T) {
	t.Parallel()
	workload := object(t, deployment)
	for text, want := range map[string]bool{
		"{metadata: {namespace: team}, spec: {selector: {app: web}}}":              true,
		"{metadata: {namespace: team}, spec: {selector: {app: web, tier: front}}}": true,
		"{metadata: {namespace: team}, spec: {selector: {app: web, tier: back}}}":  false,
		"{metadata: {namespace: other}, spec: {selector: {app: web}}}":             false,
		"{metadata: {namespace: team}, spec: {}}":                                  false,
	} {
		service := object(t, "{apiVersion: v1, kind: Service, "+text[1:])
		if got := Selects(service, workload); got != want {
			t.Errorf("%s selects it: %v, want %v", text, got, want)
		}
	}
}

// TestFollowers tests that an Ingress goes to the clusters of its Services.
func TestFollowers(t *testing.T) {
	t.Parallel()
	targets := map[Need][]string{{Kind: "Service", Name: "a"}: {"us-west1", "us-east1"}, {Kind: "Service", Name: "b"}: {"us-east1", "eu"}}
	needs := []Need{{Kind: "Service", Name: "a"}, {Kind: "Service", Name: "b", Optional: true}, {Kind: "Service", Name: "missing"}}
	if diff := cmp.Diff([]string{"eu", "us-east1", "us-west1"}, Followers(needs, targets)); diff != "" {
		t.Error(diff)
	}
	// The Service moved with its Deployment, as in the demo. The Ingress moves with it.
	targets[needs[0]] = []string{"us-west1"}
	if diff := cmp.Diff([]string{"us-west1"}, Followers(needs[:1], targets)); diff != "" {
		t.Error(diff)
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetLabels(map[string]string{"sync.workloads.kcp.dev/by-hand": "true"})
	for _, step := range []struct {
		clusters []string
		changed  bool
		labels   map[string]string
		follows  string
	}{
		{[]string{"east", "west"}, true, map[string]string{"sync.workloads.kcp.dev/by-hand": "true", "sync.workloads.kcp.dev/east": "true", "sync.workloads.kcp.dev/west": "true"}, "east,west"},
		{[]string{"west", "east"}, false, map[string]string{"sync.workloads.kcp.dev/by-hand": "true", "sync.workloads.kcp.dev/east": "true", "sync.workloads.kcp.dev/west": "true"}, "east,west"},
		{[]string{"west", "by-hand"}, true, map[string]string{"sync.workloads.kcp.dev/by-hand": "true", "sync.workloads.kcp.dev/west": "true"}, "west"},
		{nil, true, map[string]string{"sync.workloads.kcp.dev/by-hand": "true"}, ""},
		{nil, false, map[string]string{"sync.workloads.kcp.dev/by-hand": "true"}, ""},
	} {
		if changed := Follow(o, step.clusters); changed != step.changed {
			t.Errorf("Follow(%v) = %v, want %v", step.clusters, changed, step.changed)
		}
		if diff := cmp.Diff(step.labels, o.GetLabels()); diff != "" || o.GetAnnotations()[workloadv1alpha1.FollowsAnnotation] != step.follows {
			t.Errorf("after %v: %s, follows %q, want %q", step.clusters, diff, o.GetAnnotations()[workloadv1alpha1.FollowsAnnotation], step.follows)
		}
	}
}

// TestSelectsOnePod tests that a Service of one pod of a StatefulSet goes to the cluster of that
// pod.
func TestSelectsOnePod(t *testing.T) {
	t.Parallel()
	set := object(t, `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: team}, spec: {replicas: 2, template: {metadata: {labels: {app: db}}}}}`)
	for selector, want := range map[string]bool{
		`{statefulset.kubernetes.io/pod-name: db-1}`:   true,
		`{app: db, apps.kubernetes.io/pod-index: "0"}`: true,
		`{app: db}`: true,
		`{statefulset.kubernetes.io/pod-name: db-2}`:           false,
		`{app: web, statefulset.kubernetes.io/pod-name: db-0}`: false,
	} {
		service := object(t, "{apiVersion: v1, kind: Service, metadata: {name: x, namespace: team}, spec: {selector: "+selector+"}}")
		if got := Selects(service, set); got != want {
			t.Errorf("a Service of %s selects the pods: %v, want %v", selector, got, want)
		}
	}
}
