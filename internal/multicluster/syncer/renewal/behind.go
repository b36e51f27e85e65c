// Package renewal checks what must be true in a cluster before its syncer renews the Lease by which
// the cluster fences: no fenced object runs more than the kcp wants. It is pure. The package
// fencing decides the rest.
package renewal

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// Fenced are the types whose objects a rik cluster stops when it fences.
var Fenced = []schema.GroupResource{
	{Group: "apps", Resource: "deployments"}, {Group: "rik.dev", Resource: "workloads"},
}

// FenceOf returns the fence that an object asks for, or 0 if it asks for none. An invalid value
// counts as 0, because here it only affects how often the Lease is renewed.
func FenceOf(o *unstructured.Unstructured) time.Duration {
	asked, _, _ := unstructured.NestedString(o.Object, "metadata", "annotations", workloadv1alpha1.FenceAfterAnnotation)
	if asked == "" {
		return 0
	}
	after, err := time.ParseDuration(asked)
	if err != nil {
		return 0
	}
	return max(after, 0)
}

// Behind returns a text about an object downstream that may still run more than upstream wants.
// The text is empty if no object does. Both lists have one type. The caller must read them from
// the servers, downstream after upstream. upstream contains only objects that are sent to the
// cluster, and downstream only objects that were made for it. Other differences, such as too few
// replicas or another image, are not a danger. If an object yields its replicas, the number in
// the cluster counts as the wanted one.
func Behind(upstream, downstream []unstructured.Unstructured, yields func(up, down *unstructured.Unstructured) bool) string {
	wanted := map[types.UID]*unstructured.Unstructured{}
	for i := range upstream {
		wanted[upstream[i].GetUID()] = &upstream[i]
	}
	for i := range downstream {
		down := &downstream[i]
		uid := types.UID(down.GetAnnotations()[workloadv1alpha1.UpstreamUIDAnnotation])
		up := wanted[uid]
		if uid == "" || FenceOf(down) == 0 && (up == nil || FenceOf(up) == 0) {
			continue
		}
		var want int64
		if up != nil && up.GetDeletionTimestamp() == nil {
			want = replicas(up)
			if yields(up, down) {
				want = replicas(down)
			}
		}
		if have := replicas(down); have > want {
			return fmt.Sprintf("%s/%s has %d replicas and should have %d", down.GetNamespace(), down.GetName(), have, want)
		}
		if !observed(down) {
			return fmt.Sprintf("%s/%s has changed, and the cluster has not processed the change", down.GetNamespace(), down.GetName())
		}
	}
	return ""
}

func replicas(o *unstructured.Unstructured) int64 {
	n, found, err := unstructured.NestedInt64(o.Object, "spec", "replicas")
	if err != nil || !found {
		return 1
	}
	return n
}

// observed reports whether the controllers of the cluster have processed the current object.
func observed(o *unstructured.Unstructured) bool {
	generation, _, err := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	return err == nil && generation >= o.GetGeneration()
}
