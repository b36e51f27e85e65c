package cluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

const statusCRDs = `
- apiVersion: apiextensions.k8s.io/v1
  kind: CustomResourceDefinition
  metadata: {name: jobs.batch}
  spec:
    group: batch
    scope: Namespaced
    names: {plural: jobs, kind: Job}
    versions:
    - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}
- apiVersion: apiextensions.k8s.io/v1
  kind: CustomResourceDefinition
  metadata: {name: stricts.example.com}
  spec:
    group: example.com
    scope: Namespaced
    names: {plural: stricts, kind: Strict}
    versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, properties: {
        phase: {type: string, enum: [Running]}, least: {type: integer, minimum: 1}, conditions: {type: array, items: {type: object, properties: {type: {type: string}, status: {type: string}}}}}}}}}
`

// TestStatusOfNoCluster tests that an object that is sent only to Clusters that do not exist
// loses its old status. The status of a finished object stays, and so does that of an object that
// is also sent to an existing cluster.
func TestStatusOfNoCluster(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *cluster.Config) {
		c.Mode = workloadv1alpha1.SyncNone
		c.PollInterval = 250 * time.Millisecond
	})
	physical := kube.Shared(t).Way(t)
	s.create(t, secret(physical.Kubeconfig()))
	s.create(t, bySecret("east"))
	objects := dynamic.NewForConfigOrDie(kcptest.LoopbackConfig(s.kcp))
	var list []map[string]any
	if err := yaml.Unmarshal([]byte(statusCRDs), &list); err != nil {
		t.Fatal(err)
	}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for _, crd := range list {
		made := &unstructured.Unstructured{Object: crd}
		if _, err := objects.Resource(crds).Create(t.Context(), made, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := objects.Resource(crds).Delete(context.WithoutCancel(t.Context()), made.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	jobs := schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	stricts := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "stricts"}
	put := func(of schema.GroupVersionResource, kind, name string, labels map[string]string, status map[string]any) {
		t.Helper()
		o := &unstructured.Unstructured{Object: map[string]any{"status": status}}
		o.SetAPIVersion(of.GroupVersion().String())
		o.SetKind(kind)
		o.SetName(name)
		var made *unstructured.Unstructured
		poll.Until(t, kube.Timeout, name+" is made", func(ctx context.Context) (err error) {
			made, err = objects.Resource(of).Namespace(metav1.NamespaceDefault).Create(ctx, o, metav1.CreateOptions{})
			return err
		})
		made.Object["status"] = status
		made, err := objects.Resource(of).Namespace(metav1.NamespaceDefault).UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// The object gets its target only now, so that no sweep sees it without its status.
		made.SetLabels(labels)
		if _, err := objects.Resource(of).Namespace(metav1.NamespaceDefault).Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	available := func() map[string]any {
		return map[string]any{"readyReplicas": int64(3), "observedGeneration": int64(1), "phase": "Running", "conditions": []any{
			map[string]any{"type": "Available", "status": "True", "reason": "Enough", "message": "it runs", "lastTransitionTime": "2020-01-01T00:00:00Z"},
		}}
	}
	complete := map[string]any{"succeeded": int64(1), "conditions": []any{map[string]any{"type": "Complete", "status": "True"}}}
	nowhere := map[string]string{workloadv1alpha1.ClusterLabel: "nowhere"}
	both := map[string]string{workloadv1alpha1.TargetLabelPrefix + "nowhere": "true", workloadv1alpha1.TargetLabelPrefix + "east": "true"}
	put(jobs, "Job", "complete", nowhere, complete)
	put(jobs, "Job", "both", both, available())
	put(stricts, "Strict", "strict", nowhere, map[string]any{"phase": "Running", "least": int64(1), "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}})
	put(jobs, "Job", "active", nowhere, available())

	has := func(of schema.GroupVersionResource, name string, want map[string]any) {
		t.Helper()
		poll.Until(t, kube.Timeout, "the status of "+name, func(ctx context.Context) error {
			o, err := objects.Resource(of).Namespace(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			status, _ := o.Object["status"].(map[string]any)
			conditions, _ := status["conditions"].([]any)
			for _, c := range conditions {
				if c, ok := c.(map[string]any); ok && c["lastTransitionTime"] != "2020-01-01T00:00:00Z" {
					delete(c, "lastTransitionTime")
				}
			}
			if diff := cmp.Diff(want, status); diff != "" {
				return fmt.Errorf("it differs (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	unknown := map[string]any{"type": "Available", "status": "Unknown", "reason": "NoSuchCluster", "message": "The Cluster to which the object is sent does not exist."}
	has(jobs, "active", map[string]any{"readyReplicas": int64(0), "observedGeneration": int64(0), "conditions": []any{unknown}})
	has(stricts, "strict", map[string]any{})
	s.sweeps(t)
	has(jobs, "complete", complete)
	has(jobs, "both", available())
}
