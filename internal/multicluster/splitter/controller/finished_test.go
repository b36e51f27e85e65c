package controller_test

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter/controller"
	"rik.dev/rik/internal/testkit/kcptest"
)

// jobsCRD is a CRD with the fields of Jobs that these tests use.
const jobsCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: jobs.batch
  annotations:
    apiresource.kcp.dev/negotiated: "true"
    api-approved.kubernetes.io: unapproved, for a test
spec:
  group: batch
  scope: Namespaced
  names: {plural: jobs, singular: job, kind: Job, listKind: JobList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// jobSite returns a site whose roots are Jobs, with its own controller.
func jobSite(t *testing.T, names ...string) *site {
	t.Helper()
	s := newSite(t, names...)
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(jobsCRD), &crd.Object); err != nil {
		t.Fatal(err)
	}
	if _, err := s.objects.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	s.resource, s.kind = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, "Job"
	for _, name := range names {
		s.is(name, true)
		s.cut(name) // the test itself writes what the clusters report
	}
	end, err := run(kcptest.LoopbackConfig(s.server), controller.Config{Types: []string{"jobs.batch"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return s
}

// job creates a Job with a time to live after its end. If target is empty, the Job is a root on
// the clusters of the site.
func (s *site) job(name, target string, ttl time.Duration) {
	s.Helper()
	o := object(s.resource, s.kind, s.namespace, name)
	if target != "" {
		o.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: target})
	}
	o.Object["spec"] = map[string]any{"ttlSecondsAfterFinished": int64(ttl.Seconds()), "template": template(name, "v1")}
	s.create(s.resource, o)
}

// completes sets the status of a Job to complete since some time ago.
func (s *site) completes(name string, ago time.Duration) {
	s.Helper()
	s.merge(s.resource, s.namespace, name, map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": "Complete", "status": "True", "reason": "CompletionsReached", "lastTransitionTime": time.Now().Add(-ago).UTC().Format(time.RFC3339)},
	}}}, "status")
}

func (s *site) deleteRoot(name string) {
	s.Helper()
	s.eventually(name+" is deleted", func(ctx context.Context) error {
		o, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && o.GetDeletionTimestamp() != nil:
			return nil
		case err != nil:
			return err
		}
		return errors.New("it is there")
	})
}

// A finished Job is deleted upstream when its time to live ends, whether it was divided or sent
// to a cluster. Before that, it stays in the cluster where it has finished, even if that cluster
// is disconnected.
func TestFinishedJobsStayAndExpire(t *testing.T) {
	s := jobSite(t, "a", "b")
	s.job("sent", s.cluster("a"), time.Minute)
	s.job("kept", s.cluster("a"), time.Hour)
	s.completes("sent", time.Hour)
	s.completes("kept", time.Minute)
	s.deleteRoot("sent")

	s.job("root", "", time.Hour)
	s.eventually("the root has a leaf", func(ctx context.Context) error {
		_, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, s.leaf("root", "a"), metav1.GetOptions{})
		return err
	})
	s.completes(s.leaf("root", "a"), time.Minute)
	s.says("root", "Complete", "True", "CompletionsReached")
	s.is("a", false, time.Hour) // unreachable for longer than any grace period
	s.job("other", "", time.Hour)
	s.eventually("another root goes to the other cluster", func(ctx context.Context) error {
		_, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, s.leaf("other", "b"), metav1.GetOptions{})
		return err
	})
	list, err := s.objects.Resource(s.resource).Namespace(s.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, o := range list.Items {
		got[o.GetName()] = o.GetDeletionTimestamp() == nil
	}
	if !got[s.leaf("root", "a")] || got[s.leaf("root", "b")] || !got["kept"] {
		t.Errorf("there are %v, want the finished leaf where it was, none in the other cluster, and the Job that is kept", got)
	}
	s.completes(s.leaf("root", "a"), 2*time.Hour)
	s.deleteRoot("root")
}
