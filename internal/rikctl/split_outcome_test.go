package rikctl

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/rikctl/split"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/served"
	"rik.dev/rik/internal/testkit/splitting"
)

// runLeaves does the work of the ready clusters: it writes the status of their leaves.
func (s *splitSite) runLeaves(ctx context.Context, ready ...string) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(rikctltest.Deployments.GVK)
	for _, cluster := range ready {
		if err := s.c.List(ctx, list, client.InNamespace(s.namespace), client.MatchingLabels{workloadv1alpha1.ClusterLabel: cluster}); err != nil {
			return err
		}
		for i := range list.Items {
			leaf := &list.Items[i]
			n, _, _ := unstructured.NestedInt64(leaf.Object, "spec", "replicas")
			status := map[string]any{
				"observedGeneration": leaf.GetGeneration(), "replicas": n, "updatedReplicas": n, "readyReplicas": n, "availableReplicas": n,
				"conditions": []any{map[string]any{"type": "Available", "status": "True"}, map[string]any{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}},
			}
			if equality.Semantic.DeepEqual(leaf.Object["status"], status) {
				continue
			}
			leaf.Object["status"] = status
			if err := s.c.Status().Update(ctx, leaf); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	return nil
}

// partsOf returns the parts that a root has.
func (s *splitSite) partsOf(ctx context.Context, root string) (map[string]int32, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(rikctltest.Deployments.GVK)
	if err := s.c.List(ctx, list, client.InNamespace(s.namespace), client.MatchingLabels{workloadv1alpha1.OwnedByLabel: root}); err != nil {
		return nil, err
	}
	parts := map[string]int32{}
	for i := range list.Items {
		if n, _, _ := unstructured.NestedInt64(list.Items[i].Object, "spec", "replicas"); n > 0 {
			parts[list.Items[i].GetLabels()[workloadv1alpha1.ClusterLabel]] = int32(n)
		}
	}
	return parts, nil
}

// becomes waits until a root has the wanted parts and a plan has no more changes.
func (s *splitSite) becomes(t *testing.T, root, file string, want map[string]int32, ready ...string) {
	t.Helper()
	poll.Until(t, served.Timeout, fmt.Sprintf("%s comes to rest as %v", root, want), func(ctx context.Context) error {
		if err := s.runLeaves(ctx, ready...); err != nil {
			return err
		}
		parts, err := s.partsOf(ctx, root)
		if err == nil && !maps.Equal(parts, want) {
			err = fmt.Errorf("it has %v", parts)
		}
		if err != nil {
			return err
		}
		s.stdin = file
		if r := s.do(t, "plan", "-f", "-"); r.code != clierror.ExitOK {
			return fmt.Errorf("it is not at rest: %s%s", r.out, r.err)
		}
		return nil
	})
}

// tryOutcome checks that the splitter does what the plan says. It must be the last part, because
// it starts the splitter.
func tryOutcome(t *testing.T, s *splitSite) {
	s.namespace = s.server.Namespace(t)
	splitting.Run(t, kcptest.LoopbackConfig(s.server))
	annotated := func(replicas int, annotations string) string {
		return strings.Replace(s.root("site", replicas), "{name: site}", "{name: site, annotations: {"+annotations+"}}", 1)
	}
	const west = "\n---\n{apiVersion: workload.kcp.dev/v1alpha1, kind: Cluster, metadata: {name: west}, spec: {taints: [%s]}}"
	const weights = `placement.workloads.kcp.dev/strategy: weighted, placement.workloads.kcp.dev/weights: "east=3,west=1"`
	const brief = `placement.workloads.kcp.dev/grace-period: 1s`
	last := annotated(9, brief) + fmt.Sprintf(west, "")
	for _, step := range []struct{ name, file string }{
		{"new", s.root("site", 7)},
		{"more", s.root("site", 12)},
		{"weighted", annotated(12, weights)},
		{"one surge, few", annotated(5, weights+`, placement.workloads.kcp.dev/max-surge: "1"`)},
		{"a taint", annotated(5, weights) + fmt.Sprintf(west, "{key: old, effect: NoExecute}")},
		{"even again", last},
	} {
		s.stdin = step.file
		r := s.do(t, "plan", "-f", "-", "-o", "json")
		var plans []split.Plan
		if err := json.Unmarshal([]byte(r.out), &plans); err != nil || r.code != clierror.ExitError {
			t.Fatalf("%s: planning ended with %d, %v: %s%s", step.name, r.code, err, r.out, r.err)
		}
		s.do(t, "apply", "-f", "-").check(t, clierror.ExitOK)
		for i := range plans {
			if plans[i].Namespace == s.namespace {
				s.becomes(t, "site", step.file, plans[i].Ends(), "east", "west")
			}
		}
	}
	var look split.Impact
	r := s.do(t, "whatif", "--lose-cluster", "east", "deployment/site", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &look); err != nil || len(look.Changes) != 1 {
		t.Fatalf("whatif: %v: %s%s", err, r.out, r.err)
	}
	east := &workloadv1alpha1.Cluster{}
	if err := s.c.Get(t.Context(), client.ObjectKey{Name: "east"}, east); err != nil {
		t.Fatal(err)
	}
	meta.SetStatusCondition(&east.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Supposed"})
	if err := s.c.Status().Update(t.Context(), east); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, served.Timeout, fmt.Sprintf("the root comes to be divided as %v", look.Changes[0].Then), func(ctx context.Context) error {
		if err := s.runLeaves(ctx, "west"); err != nil {
			return err
		}
		parts, err := s.partsOf(ctx, "site")
		if err == nil && !maps.Equal(parts, look.Changes[0].Then) {
			err = fmt.Errorf("it has %v", parts)
		}
		return err
	})
}
