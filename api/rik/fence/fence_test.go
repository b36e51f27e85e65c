package fence_test

import (
	"testing"
	"time"

	"rik.dev/rik/api/rik/fence"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

func TestAfter(t *testing.T) {
	t.Parallel()
	if fence.Annotation != workloadv1alpha1.FenceAfterAnnotation {
		t.Errorf("the annotation is %q here and %q upstream", fence.Annotation, workloadv1alpha1.FenceAfterAnnotation)
	}
	for value, want := range map[string]time.Duration{
		"": 0, "30s": 30 * time.Second, "2h": 2 * time.Hour, "1s": fence.Shortest, "-1h": fence.Shortest, "soon": fence.Shortest, "30": fence.Shortest,
	} {
		if got, asks := fence.After(map[string]string{fence.Annotation: value}); got != want || asks != (want > 0) {
			t.Errorf("After(%q) = %v, %v, want %v", value, got, asks, want)
		}
	}
}
