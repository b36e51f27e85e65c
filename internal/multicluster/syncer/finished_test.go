package syncer_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/crdpuller"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

var jobs = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}

// publishJobs makes the kcp serve the Jobs of the Kubernetes cluster.
func (k *kcp) publishJobs(from *rest.Config) { k.publish(from, jobs) }

// publish makes the kcp serve a type of the Kubernetes cluster.
func (k *kcp) publish(from *rest.Config, resource schema.GroupVersionResource) {
	k.t.Helper()
	puller, err := crdpuller.New(crdpuller.Config{Rest: from, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		k.t.Fatal(err)
	}
	result, err := puller.Pull(k.t.Context(), resource.GroupResource().String())
	if err != nil || len(result.CRDs) != 1 {
		k.t.Fatalf("pulling %s: %v, %+v", resource, err, result)
	}
	client := apiextensionsclient.NewForConfigOrDie(k.config).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := client.Create(k.t.Context(), result.CRDs[0], metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		k.t.Fatalf("publishing %s: %v", resource, err)
	}
	poll.Until(k.t, kube.Timeout, "the kcp serves "+resource.Resource, func(ctx context.Context) error {
		_, err := k.objects.Resource(resource).List(ctx, metav1.ListOptions{})
		return err
	})
}

const jobText = `
apiVersion: batch/v1
kind: Job
metadata:
  name: %s
  namespace: team
  labels: {workloads.kcp.dev/cluster: %s}
spec:
  ttlSecondsAfterFinished: 3
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: "work:1"}]
`

// A finished Job that its cluster has removed does not run again. Its time to live counts only
// upstream. A Job that is deleted upstream is deleted in the cluster together with its pods.
// Without a deletion policy, Kubernetes would orphan the pods, and wait here for a controller
// that does so.
func TestAFinishedJobDoesNotRunAgain(t *testing.T) {
	p := startPair(t, "finished")
	p.publishJobs(p.kube.Rest())
	p.carries("finished", append([]string{"jobs.batch"}, core...)...)
	create(t, p.objects, jobs, parse(t, fmt.Sprintf(jobText, "done", "finished")))
	create(t, p.objects, jobs, parse(t, fmt.Sprintf(jobText, "lost", "finished")))
	has(t, p.down, jobs, p.there, "done", field(nil, "spec", "ttlSecondsAfterFinished"))
	has(t, p.down, jobs, p.there, "lost", anyhow)

	now := time.Now().UTC().Format(time.RFC3339)
	patch(t, p.down, jobs, p.there, "done", `{"status":{"startTime":"`+now+`"}}`, "status")
	patch(t, p.down, jobs, p.there, "done", `{"status":{"completionTime":"`+now+`","succeeded":1,"conditions":[
		{"type":"SuccessCriteriaMet","status":"True","lastTransitionTime":"`+now+`"},{"type":"Complete","status":"True","lastTransitionTime":"`+now+`"}]}}`, "status")
	has(t, p.objects, jobs, "team", "done", field(1, "status", "succeeded"))

	background := metav1.DeletePropagationBackground
	for _, name := range []string{"done", "lost"} {
		if err := p.down.Resource(jobs).Namespace(p.there).Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			t.Fatal(err)
		}
	}
	has(t, p.down, jobs, p.there, "lost", anyhow) // a Job that has not finished is created again
	p.passes("later")
	if err := p.stop(); err != nil {
		t.Fatalf("Run() = %v", err)
	}
	p.running = p.sync("finished", p.kube.Rest()) // a new syncer knows only what upstream contains
	p.passes("after-restart")
	if o, err := p.down.Resource(jobs).Namespace(p.there).Get(t.Context(), "done", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the finished Job was made again: %v, %v", o, err)
	}
	for _, name := range []string{"done", "lost"} {
		remove(t, p.objects, jobs, "team", name)
		hasNot(t, p.down, jobs, p.there, name)
		hasNot(t, p.objects, jobs, "team", name)
	}
}
