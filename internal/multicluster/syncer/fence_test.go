package syncer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/crdpuller"
	"rik.dev/rik/internal/testkit/apiprocess"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

var (
	leases    = groupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	workloads = rikv1alpha1.SchemeGroupVersion.WithResource("workloads")
)

// fencing is a kcp, a rik cluster and the syncer between them. The test acts as the controllers
// of both.
type fencing struct {
	*testing.T
	up    *kcp
	down  dynamic.Interface
	lease string
}

// TestFence tests when the syncer answers challenges, and when it must not.
func TestFence(t *testing.T) {
	t.Parallel()
	rik := apiprocess.Start(t)
	up := startKCP(t)
	publishWorkloads(up, rik.Config)
	up.namespace("team")
	cluster := up.register("east", "workloads.rik.dev")
	f := &fencing{T: t, up: up, down: dynamic.NewForConfigOrDie(rik.Config), lease: workloadv1alpha1.FenceLeaseName(string(cluster.GetUID()))}
	create(t, up.objects, workloads, parse(t, `
apiVersion: rik.dev/v1alpha1
kind: Workload
metadata:
  name: web
  namespace: team
  labels: {workloads.kcp.dev/cluster: east}
  annotations: {workloads.kcp.dev/fence-after: 10s}
spec: {deploy: Automatic, replicas: 2, containers: [{name: web, image: "web:1"}]}
`))
	up.sync("east", rik.Config)
	namespace := up.downNamespace("east", "team")
	has(t, f.down, workloads, namespace, "web", func(*unstructured.Unstructured) error { return nil })

	f.observe(namespace, 1)
	f.challenge("first")
	f.answered("first")
	f.challenge("second")
	f.answered("second")
	f.condition("True", "Acknowledged")

	// The kcp considers the cluster silent, and wants less of it.
	f.seen("False")
	f.challenge("third")
	f.stays("third")
	patch(t, up.objects, workloads, "team", "web", `{"spec":{"replicas":0}}`)
	has(t, f.down, workloads, namespace, "web", func(o *unstructured.Unstructured) error {
		if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); n != 0 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})
	f.seen("True")
	f.stays("third") // its controllers have not processed that yet
	f.observe(namespace, 2)
	f.answered("third")
}

// TestKubernetesCannotFence tests that a Kubernetes cluster does not fence, and that the syncer
// creates nothing there for it.
func TestKubernetesCannotFence(t *testing.T) {
	t.Parallel()
	k, c := downstream(t)
	up := startKCP(t)
	cluster := up.register("west", "configmaps")
	up.sync("west", k.Rest())
	f := &fencing{T: t, up: up, down: c}
	f.conditionOf("west", "False", "NotARikCluster")
	_, err := c.Resource(leases).Namespace(workloadv1alpha1.FenceNamespace).Get(t.Context(), workloadv1alpha1.FenceLeaseName(string(cluster.GetUID())), metav1.GetOptions{})
	if err == nil {
		t.Error("a Lease was made in a cluster that cannot fence")
	}
}

// publishWorkloads makes the kcp serve the Workloads of a rik cluster.
func publishWorkloads(k *kcp, from *rest.Config) {
	k.t.Helper()
	puller, err := crdpuller.New(crdpuller.Config{Rest: from, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		k.t.Fatal(err)
	}
	result, err := puller.Pull(k.t.Context(), "workloads.rik.dev")
	if err != nil || len(result.CRDs) != 1 {
		k.t.Fatalf("pulling workloads: %v, %+v", err, result)
	}
	client := apiextensionsclient.NewForConfigOrDie(k.config).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := client.Create(k.t.Context(), result.CRDs[0], metav1.CreateOptions{}); err != nil {
		k.t.Fatalf("publishing workloads: %v", err)
	}
	poll.Until(k.t, kube.Timeout, "the kcp serves workloads", func(ctx context.Context) error {
		_, err := k.objects.Resource(workloads).List(ctx, metav1.ListOptions{})
		return err
	})
}

// challenge sets a challenge, as the controller of the cluster does.
func (f *fencing) challenge(text string) {
	f.Helper()
	has(f.T, f.down, leases, workloadv1alpha1.FenceNamespace, f.lease, func(*unstructured.Unstructured) error { return nil })
	patch(f.T, f.down, leases, workloadv1alpha1.FenceNamespace, f.lease, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, workloadv1alpha1.FenceChallengeAnnotation, text))
}

func answerOn(o *unstructured.Unstructured) string {
	return o.GetAnnotations()[workloadv1alpha1.FenceAnswerAnnotation]
}

func (f *fencing) answered(text string) {
	f.Helper()
	has(f.T, f.down, leases, workloadv1alpha1.FenceNamespace, f.lease, func(o *unstructured.Unstructured) error {
		if got := answerOn(o); got != text {
			return fmt.Errorf("the answer is %q, want %q", got, text)
		}
		return nil
	})
}

// stays checks that a challenge is not answered while two heartbeats are accepted and the Lease
// is checked.
func (f *fencing) stays(text string) {
	f.Helper()
	seen := map[string]bool{}
	poll.Until(f.T, kube.Timeout, "heartbeats come", func(ctx context.Context) error {
		c, err := f.up.clusterOf(ctx, "east")
		if err != nil {
			return err
		}
		if c.Status.LastHeartbeatTime != nil {
			seen[c.Status.LastHeartbeatTime.String()] = true
		}
		if len(seen) < 4 {
			return errors.New("too few heartbeats")
		}
		return nil
	})
	o, err := f.down.Resource(leases).Namespace(workloadv1alpha1.FenceNamespace).Get(f.Context(), f.lease, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	if answerOn(o) == text {
		f.Errorf("the challenge %q was answered", text)
	}
}

// observe writes the status of the Workload, as the controllers of the cluster would.
func (f *fencing) observe(namespace string, generation int) {
	f.Helper()
	patch(f.T, f.down, workloads, namespace, "web", fmt.Sprintf(`{"status":{"observedGeneration":%d}}`, generation), "status")
}

// seen writes upstream whether heartbeats arrive, as the cluster controller does.
func (f *fencing) seen(status string) {
	f.Helper()
	apply := parse(f.T, fmt.Sprintf(`
apiVersion: workload.kcp.dev/v1alpha1
kind: Cluster
metadata: {name: east}
status:
  conditions:
  - {type: HeartbeatHealthy, status: %q, reason: Test, message: test, lastTransitionTime: "2026-01-02T03:04:05Z"}
`, status))
	if _, err := f.up.objects.Resource(clusters).ApplyStatus(f.Context(), "east", apply, metav1.ApplyOptions{FieldManager: "rik-cluster-controller", Force: true}); err != nil {
		f.Fatal(err)
	}
}

func (f *fencing) condition(status, reason string) { f.Helper(); f.conditionOf("east", status, reason) }

// conditionOf waits for the condition Fencing. An empty status means that there is no such
// condition.
func (f *fencing) conditionOf(cluster, status, reason string) {
	f.Helper()
	poll.Until(f.T, kube.Timeout, "the condition Fencing is right", func(ctx context.Context) error {
		c, err := f.up.clusterOf(ctx, cluster)
		if err != nil {
			return err
		}
		var got metav1.Condition
		for _, c := range c.Status.Conditions {
			if c.Type == workloadv1alpha1.ConditionFencing {
				got = c
			}
		}
		if string(got.Status) != status || got.Reason != reason {
			return fmt.Errorf("it is %q %q (%s), want %q %q", got.Status, got.Reason, got.Message, status, reason)
		}
		return nil
	})
}
